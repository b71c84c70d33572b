"""Tasks that the chip's cores do not run: AI_CPU and HOST_CPU, executed with NumPy between stretches of device tasks.

An Ascend operator (AI_CPU, or a device operator without a fast host kernel) is computed by its derived twin, straight
on device memory. A framework node on HOST_CPU is computed by ONNX's reference implementation: operands are copied out
of device memory, its results copied back.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import DeviceFault, OperatorError
from metadef.kernel import Kernel
from metadef.ops.numeric import narrow
from metadef.program import Task
from npusim.device import Device
from npusim.twin import run_twin


def run_host_task(task: Task, device: Device, overflow: str = "inf") -> None:
    """Execute one task in device memory with NumPy.

    Raises:
        OperatorError: nobody knows the operator. DeviceFault: its reference refused the values it was given.
    """
    inputs = [None if operand is None else device.read_tensor(operand) for operand in task.inputs]
    if task.kernel.domain == "ascend":
        results = run_twin(task.kernel, inputs, node=task.name, overflow=overflow)
    else:
        results = run_framework_node(task.kernel, inputs, task.name)
    for operand, result in zip(task.outputs, results, strict=True):
        device.write_tensor(operand, result)


def run_framework_node(kernel: Kernel, inputs: list[np.ndarray | None], name: str) -> list[np.ndarray]:
    """Results of an ONNX node by ONNX's own reference implementation; shapes must be those the compiler inferred.

    Raises:
        OperatorError: the reference has no such operator, or its result has another shape than was inferred.
        DeviceFault: the reference refused the operands' values.
    """
    evaluator = _evaluator(_FrozenKernel(kernel, name))
    feeds = {f"x{slot}": _as_numpy(array, kernel, slot) for slot, array in enumerate(inputs) if array is not None}
    try:
        with np.errstate(all="ignore"):
            results = evaluator.run(None, feeds)
    except (ValueError, TypeError, IndexError, ArithmeticError, RuntimeError) as error:
        text = f"{kernel.op_type} on HOST_CPU failed: {error}"
        raise DeviceFault(text, node=name, hint="check the values this node is given") from error
    arrays = []
    for result, desc in zip(results, kernel.outputs, strict=True):
        array = np.asarray(result)
        if array.shape != desc.origin_shape:
            raise OperatorError(
                f"{kernel.op_type} gave a result whose shape depends on its values",
                node=name,
                expected=str(desc.origin_shape),
                got=str(array.shape),
                hint="give the node constant operands, so that the shape is known when the model is compiled",
            )
        arrays.append(narrow(array, desc.dtype))
    return arrays


class _FrozenKernel:
    """A kernel as a cache key: kernels live as long as their program, so identity is enough."""

    def __init__(self, kernel: Kernel, name: str) -> None:
        self.kernel = kernel
        self.name = name

    def __hash__(self) -> int:
        return id(self.kernel)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _FrozenKernel) and other.kernel is self.kernel


@lru_cache(maxsize=256)
def _evaluator(key: _FrozenKernel) -> Any:
    from onnx import defs, helper
    from onnx.reference import ReferenceEvaluator

    kernel = key.kernel
    opset = kernel.opset or defs.onnx_opset_version()
    names = ["" if desc is None else f"x{slot}" for slot, desc in enumerate(kernel.inputs)]
    results = [f"y{slot}" for slot in range(len(kernel.outputs))]
    attrs = {name: _attribute(value) for name, value in kernel.attrs.items()}
    node = helper.make_node(kernel.op_type, names, results, name=key.name, domain=kernel.domain, **attrs)
    inputs = [
        helper.make_tensor_value_info(name, desc.dtype.onnx_enum, desc.origin_shape)
        for name, desc in zip(names, kernel.inputs, strict=True)
        if desc is not None
    ]
    outputs = [
        helper.make_tensor_value_info(name, desc.dtype.onnx_enum, desc.origin_shape)
        for name, desc in zip(results, kernel.outputs, strict=True)
    ]
    graph = helper.make_graph([node], key.name or kernel.op_type, inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid(kernel.domain, opset)])
    try:
        return ReferenceEvaluator(model)
    except (NotImplementedError, RuntimeError) as error:
        text = f"{kernel.domain or 'ai.onnx'}::{kernel.op_type} has no place to run"
        hint = "ONNX's reference implementation does not know it either"
        raise OperatorError(text, node=key.name, got=str(error), hint=hint) from error


def _attribute(value: Any) -> Any:
    from onnx import numpy_helper

    return numpy_helper.from_array(value) if isinstance(value, np.ndarray) else value


def _as_numpy(array: np.ndarray, kernel: Kernel, slot: int) -> np.ndarray:
    desc = kernel.inputs[slot]
    if desc is not None and desc.dtype is DType.BF16:
        import ml_dtypes

        return array.view(ml_dtypes.bfloat16)
    return array.copy()
