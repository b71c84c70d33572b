"""LSTM: one product for all inputs, then a product and element-wise gates a step, written out step by step.

Long sequences stay on the host: their steps would fill the task list.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from metadef.dtype import DType
from metadef.graph import Tensor
from metadef.legalize.table import Step, Unmapped, rule

MOST_STEPS = 16
_USUAL = ("Sigmoid", "Tanh", "Tanh")
_WAYS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


@rule("LSTM", since=7)
def lstm(step: Step) -> Sequence[Tensor | None]:
    """All steps of all directions. Refuses peepholes, clipping, other activations, lengths of sequences."""
    ways = _WAYS[step.attr("direction", "forward")]
    _check(step, len(ways))
    batch = step.shape()[1]
    hidden = int(step.attr("hidden_size") or step.shape(2)[-1])
    rows, last_h, last_c = [], [], []
    for way, backward in enumerate(ways):
        made, h, c = _direction(step, way, backward, hidden)
        rows.append(_joined(step, [step.reshape(item, (1, 1, batch, hidden)) for item in made], 0))
        last_h.append(step.reshape(h, (1, batch, hidden)))
        last_c.append(step.reshape(c, (1, batch, hidden)))
    results = [_joined(step, rows, 1), _joined(step, last_h, 0), _joined(step, last_c, 0)]
    return [result if step.is_read(slot) else None for slot, result in enumerate(results[: len(step.node.outputs)])]


def _check(step: Step, ways: int) -> None:
    if step.dtype() is not DType.FLOAT:
        raise Unmapped(f"LSTM in {step.dtype().label}")
    if step.optional(4) is not None or step.optional(7) is not None:
        raise Unmapped("sequence lengths or peepholes")
    if step.attr("clip") or step.attr("input_forget", 0) or step.attr("layout", 0):
        raise Unmapped("clip, input_forget or layout")
    if tuple(step.attr("activations", _USUAL * ways)) != _USUAL * ways:
        raise Unmapped("other activations than Sigmoid, Tanh, Tanh")
    if not 1 <= step.shape()[0] <= MOST_STEPS:
        raise Unmapped(f"sequences of {step.shape()[0]} steps (1 to {MOST_STEPS} are written out)")


def _direction(step: Step, way: int, backward: bool, hidden: int) -> tuple[list[Tensor], Tensor, Tensor]:
    """Hidden states in the order of the sequence, the last hidden state, the last cell state."""
    steps, batch, width = step.shape()
    weight = step.constant(step.value(1, "W")[way], f"W{way}", step.dtype(1))
    again = step.constant(step.value(2, "R")[way], f"R{way}", step.dtype(2))
    bias = np.zeros(4 * hidden, np.float32)
    if step.optional(3) is not None:
        bias = step.value(3, "B")[way].reshape(2, -1).sum(axis=0)
    summand = step.constant(bias, f"B{way}", step.dtype())
    turned = {"transpose_x2": True}
    inputs = step.op("MatMulV2", [step.reshape(step[0], (steps * batch, width)), weight, summand], turned)
    h, c = (_state(step, slot, way, batch, hidden) for slot in (5, 6))
    made: dict[int, Tensor] = {}
    for at in reversed(range(steps)) if backward else range(steps):
        part = _rows(step, inputs, 0, at * batch, batch) if steps > 1 else inputs
        gates = step.op("Add", [part, step.op("MatMulV2", [h, again], turned)])
        i, o, f, g = (
            step.op("Tanh" if gate == 3 else "Sigmoid", [_rows(step, gates, 1, gate * hidden, hidden)])
            for gate in range(4)
        )
        c = step.op("Add", [step.op("Mul", [f, c]), step.op("Mul", [i, g])])
        h = made[at] = step.op("Mul", [o, step.op("Tanh", [c])])
    return [made[at] for at in range(steps)], h, c


def _state(step: Step, slot: int, way: int, batch: int, hidden: int) -> Tensor:
    whole = step.optional(slot)
    if whole is None:
        return step.constant(np.zeros((batch, hidden), np.float32), f"zero{slot}", step.dtype())
    part = _rows(step, whole, 0, way, 1) if whole.desc.origin_shape[0] > 1 else whole
    return step.reshape(part, (batch, hidden))


def _rows(step: Step, tensor: Tensor, axis: int, first: int, count: int) -> Tensor:
    """A stretch of an axis."""
    shape = tensor.desc.origin_shape
    begin = [first if at == axis else 0 for at in range(len(shape))]
    end = [first + count if at == axis else size for at, size in enumerate(shape)]
    return step.op("StridedSliceD", [tensor], {"begin": begin, "end": end, "strides": [1] * len(shape)})


def _joined(step: Step, tensors: Sequence[Tensor], axis: int) -> Tensor:
    return tensors[0] if len(tensors) == 1 else step.op("ConcatD", tensors, {"concat_dim": axis})
