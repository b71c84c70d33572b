"""The list of what has a fast kernel is true: tasks of every type on it run on one, and nobody else's fall back."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.op import CostClass, FormatRule, all_op_types, get_op
from npusim.fast_types import host_types
from tests.metadef.ops.test_registry import sample_of
from tests.npusim.mini_program import Value, mini_task

WITHOUT = {"Cos", "Cumsum", "GatherElements", "Sin", "TopKD"}
"""Operators of the AI cores that no kernel of this host computes."""
REWRITTEN = {"DepthwiseConv2D"}
"""Operators that a pass turns into others: no task has them."""
FIXED = ("AscendDequant", "AscendRequant")


def own_types() -> list[str]:
    """Operators of the package, without those that other tests declare."""
    return [name for name in all_op_types() if not name.startswith(("Dummy", "Test"))]


def test_what_runs_on_its_twin_alone_is_known() -> None:
    slow = {name for name in own_types() if host_types(name).slow}
    assert slow <= WITHOUT | REWRITTEN | {"Pow", "ResizeBilinearV2D"}
    assert not any(host_types(name).fast for name in WITHOUT)


def test_every_family_takes_bfloat16_where_it_takes_float16() -> None:
    for name in own_types():
        types = host_types(name)
        assert (DType.FLOAT16 in types.fast) == (DType.BF16 in types.fast), name


def test_products_take_int8() -> None:
    assert all(DType.INT8 in host_types(name).fast for name in ("Conv2D", "MatMulV2", "BatchMatMulV2"))


def planned() -> list[tuple[str, DType]]:
    pairs = []
    for name in own_types():
        opdef = get_op(name)
        plain = opdef.formats in (FormatRule.PLAIN, FormatRule.ANY) and opdef.cost is not CostClass.VIEW
        if plain and name not in FIXED:
            pairs += [(name, dtype) for dtype in host_types(name).fast]
    return pairs


@pytest.mark.slow
@pytest.mark.parametrize(("op_type", "dtype"), planned(), ids=lambda item: str(item))
def test_sample_tasks_do_not_fall_back(op_type: str, dtype: DType) -> None:
    opdef, sample = get_op(op_type), sample_of(get_op(op_type))
    rng = np.random.default_rng(5)
    values = []
    for (_, port), item in zip(opdef.ports_of(len(sample.operands)), sample.operands, strict=False):
        free = not isinstance(item, np.ndarray)
        array = rng.uniform(1, 3, item) if free else item
        own = dtype if free and dtype in port.types else DType.from_numpy(array.dtype if not free else np.float32)
        values.append(Value(array, own, const=op_type == "BNInfer" and bool(values)))
    attrs = dict(sample.attrs)
    if op_type == "PadD" and not dtype.is_float:
        attrs["constant_values"] = 1.0
    assert not mini_task(op_type, values, attrs).loaded.fallbacks
