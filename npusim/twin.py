"""The derived twin of a task: what its operator's declaration says the result is, computed slowly with NumPy.

unpack the storage formats -> widen 16-bit floats -> the prototype's reference, then the references of the fused
operators -> one rounding to the result's element type -> pack. Accuracy reports recompute tasks with it, AI_CPU tasks
run on it, and every fast kernel is tested against it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.error import ContractError
from metadef.format import TensorDesc, pack, unpack
from metadef.kernel import Kernel
from metadef.op import get_op
from metadef.ops.evaluate import compute_fused
from metadef.ops.numeric import narrow, widen
from metadef.winograd import RELATIVE_ERROR

ALGORITHM_SLACK = {"winograd_f4": RELATIVE_ERROR["winograd_f4"] / RELATIVE_ERROR["winograd_f2"]}
"""How many times farther from its twin than other tasks a task may be, by its algorithm."""
BFLOAT16_SLACK = 2.0 ** (11 - 8)
"""Significand bits of float16 and bfloat16: how many times coarser one rounding is."""


def slack_of(kernel: Kernel) -> float:
    """How many times farther from its twin than other tasks this one may be: its algorithm's share times its type's."""
    bfloat16 = any(desc.dtype.name == "BF16" for desc in kernel.outputs)
    return ALGORITHM_SLACK.get(kernel.algorithm, 1.0) * (BFLOAT16_SLACK if bfloat16 else 1.0)


def run_twin(
    kernel: Kernel,
    inputs: Sequence[np.ndarray | None],
    *,
    node: str = "",
    overflow: str = "inf",
    wide: type[np.floating] = np.float32,
) -> list[np.ndarray]:
    """Results of a task in storage layout.

    Args:
        kernel: the operator with formats, attributes and epilogue.
        inputs: storage arrays in the order of ``kernel.inputs`` (None: absent operand; bfloat16 as uint16).
        node: the task's name, for messages.
        overflow: ``inf`` or ``saturate``, the chip's way with float16 overflow.
        wide: the type floats are computed in; float64 gives a reference for float32 kernels.

    Raises:
        OperatorError: the operator is not declared. ContractError: its reference gave a wrong shape.
    """
    origins = [
        None if array is None or desc is None else unpack(array, desc)
        for array, desc in zip(inputs, kernel.inputs, strict=True)
    ]
    results = run_wide(kernel, origins, node=node, wide=wide)
    storage = []
    for result, desc in zip(results, kernel.outputs, strict=True):
        if result.shape != desc.origin_shape:
            text = f"the reference of {kernel.op_type} gave a result of another shape than was inferred"
            raise ContractError(text, node=node, expected=str(desc.origin_shape), got=str(result.shape))
        storage.append(pack(narrow(result, desc.dtype, overflow), desc))
    return storage


def exact_results(kernel: Kernel, inputs: Sequence[np.ndarray | None], *, node: str = "") -> list[np.ndarray]:
    """Results of a task in framework layout, in float64 and without rounding, from storage arrays."""
    origins = [
        None if array is None or desc is None else unpack(array, desc)
        for array, desc in zip(inputs, kernel.inputs, strict=True)
    ]
    return run_wide(kernel, origins, node=node, wide=np.float64)


def wide_values(array: np.ndarray, desc: TensorDesc) -> np.ndarray:
    """A storage array in framework layout, floats as float64."""
    return widen(unpack(array, desc), desc.dtype, np.float64)


def one_element(value: float, desc: TensorDesc) -> np.ndarray:
    """A framework array of one stored element under four axes."""
    return narrow(np.full((1, 1, 1, 1), value, np.float32), desc.dtype)


def run_wide(
    kernel: Kernel,
    origins: Sequence[np.ndarray | None],
    *,
    node: str = "",
    wide: type[np.floating] = np.float32,
) -> list[np.ndarray]:
    """Results of a task in framework layout before their rounding, from operands in framework layout."""
    operands = [
        None if array is None or desc is None else widen(array, desc.dtype, wide)
        for array, desc in zip(origins, kernel.inputs, strict=True)
    ]
    with np.errstate(all="ignore"):
        results = compute_fused(get_op(kernel.op_type, node), operands, kernel.attrs, kernel.fused)
    return [np.asarray(result) for result in results]
