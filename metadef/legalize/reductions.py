"""Rules for reductions, and for those that need a few operators around one."""

from __future__ import annotations

from collections.abc import Sequence

from metadef.dtype import DType
from metadef.graph import Tensor
from metadef.legalize.arithmetic import cast
from metadef.legalize.table import Step, Unmapped, rule

_PLAIN = {
    "ReduceMax": "ReduceMaxD",
    "ReduceMean": "ReduceMeanD",
    "ReduceMin": "ReduceMinD",
    "ReduceProd": "ReduceProdD",
    "ReduceSum": "ReduceSumD",
}


def _axes(step: Step) -> tuple[int, ...] | None:
    """Axes to reduce, counted from the front; None if the node reduces nothing."""
    axes = step.ints(1, "axes")
    if not axes:
        return None if step.attr("noop_with_empty_axes", 0) else tuple(range(step.rank()))
    return tuple(sorted(axis % step.rank() for axis in axes))


def _reduce_attrs(step: Step, axes: tuple[int, ...]) -> dict[str, object]:
    return {"axes": axes, "keep_dims": bool(step.attr("keepdims", 1))}


@rule(*_PLAIN)
def reduce(step: Step) -> Sequence[Tensor]:
    axes = _axes(step)
    if not axes:
        return [step[0]]
    return step.out(_PLAIN[step.node.op_type], [step[0]], _reduce_attrs(step, axes))


def _summed(step: Step, value: Tensor) -> Tensor:
    axes = _axes(step)
    return value if not axes else step.op("ReduceSumD", [value], _reduce_attrs(step, axes))


@rule("ReduceL1")
def l1(step: Step) -> Sequence[Tensor]:
    return [_summed(step, step.op("Abs", [step[0]]))]


@rule("ReduceL2")
def l2(step: Step) -> Sequence[Tensor]:
    return step.out("Sqrt", [_summed(step, step.op("Mul", [step[0], step[0]]))])


@rule("ReduceSumSquare")
def sum_of_squares(step: Step) -> Sequence[Tensor]:
    return [_summed(step, step.op("Mul", [step[0], step[0]]))]


@rule("ReduceLogSum")
def log_of_sum(step: Step) -> Sequence[Tensor]:
    return step.out("Log", [_summed(step, step[0])])


@rule("ReduceLogSumExp")
def log_of_sum_of_exponentials(step: Step) -> Sequence[Tensor]:
    """The largest element is taken out first, so that nothing overflows."""
    axes = _axes(step)
    if not axes:
        return [step[0]]
    largest = step.op("ReduceMaxD", [step[0]], {"axes": axes, "keep_dims": True})
    spread = step.op("Exp", [step.op("Sub", [step[0], largest])])
    logarithm = step.op("Log", [step.op("ReduceSumD", [spread], {"axes": axes, "keep_dims": True})])
    if step.attr("keepdims", 1):
        return step.out("Add", [logarithm, largest])
    return step.out("Reshape", [step.op("Add", [logarithm, largest])], {"shape": step.result().origin_shape})


@rule("TopK")
def top_k(step: Step) -> Sequence[Tensor]:
    """Sorted, whether that is asked for or not; the AI cores give places in 32 bits."""
    count = step.ints(1, "k")
    assert count is not None
    attrs = {
        "k": count[0],
        "axis": step.axis(-1),
        "largest": bool(step.attr("largest", 1)),
    }
    values, places = step.out("TopKD", [step[0]], attrs)
    return [values, cast(step, places, DType.INT64)]


@rule("ArgMax", "ArgMin")
def arg(step: Step) -> Sequence[Tensor]:
    if step.attr("select_last_index", 0):
        raise Unmapped("the last of equal elements is asked for")
    attrs = {
        "dimension": step.attr("axis", 0) % max(step.rank(), 1),
        "keep_dims": bool(step.attr("keepdims", 1)),
        "dtype": step.result().dtype,
    }
    return step.out(f"{step.node.op_type}D", [step[0]], attrs)
