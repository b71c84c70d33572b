"""Operators that ONNX's reference implementation lacks or gets wrong, for HOST_CPU and for bodies of control flow.

The evaluator takes these classes before its own; a class is named after the operator it computes. Which deviations
they mend: LRN sums over the wrong window unless batch equals channels, Loop joins scan outputs along their first axis
instead of stacking them, Scatter is missing, and Softmax, LogSoftmax and Hardmax know only the meaning of opset 13.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_loop import Loop as ReferenceLoop
from onnx.reference.ops.op_scatter_elements import ScatterElements

_ONE_AXIS_SINCE = 13


def host_operators(opset: int) -> list[Any]:
    """The classes that stand in for the reference's own under an opset of the main domain."""
    flattening: list[Any] = [Softmax, LogSoftmax, Hardmax] if opset < _ONE_AXIS_SINCE else []
    return [LRN, Loop, Scatter, *flattening]


class LRN(OpRun):
    """Local response normalisation over channels: the window holds floor((size-1)/2) before, ceil((size-1)/2) after."""

    op_domain = ""

    def _run(self, x: np.ndarray, alpha: float, beta: float, bias: float, size: int) -> tuple[np.ndarray]:
        before, after = (size - 1) // 2, size // 2
        channels = x.shape[1]
        squares = np.square(x.astype(np.float64))
        sums = np.concatenate([np.zeros_like(squares[:, :1]), np.cumsum(squares, axis=1)], axis=1)
        high = np.minimum(np.arange(channels) + after + 1, channels)
        low = np.maximum(np.arange(channels) - before, 0)
        total = sums[:, high] - sums[:, low]
        return ((x / (bias + alpha / size * total) ** beta).astype(x.dtype),)


class Loop(ReferenceLoop):
    """Loop: absent trip count or condition mean "go on"; scan outputs are stacked on a new first axis."""

    op_domain = ""
    body: Any
    _run_body: Any

    def _run(
        self,
        limit: np.ndarray | None,
        condition: np.ndarray | None,
        *carried: np.ndarray,
        context: dict[str, np.ndarray] | None = None,
        body: Any = None,
        attributes: dict[str, Any] | None = None,
        bindings: Any = None,
    ) -> tuple[np.ndarray, ...]:
        names = self.body.input_names
        state = list(carried)
        scans: list[list[np.ndarray]] = [[] for _ in range(self.K)]
        trips, going = 0, condition is None or bool(condition)
        kind = np.int64 if limit is None else limit.dtype
        while going and (limit is None or trips < int(limit)):
            feeds = dict(context or {})
            feeds |= dict(zip(names, [np.array(trips, kind), np.array(going), *state], strict=True))
            going_on, *results = self._run_body(feeds, attributes=attributes, bindings=bindings)
            going = bool(going_on)
            state = results[: self.N]
            for rows, row in zip(scans, results[self.N :], strict=True):
                rows.append(row)
            trips += 1
        return (*state, *(np.stack(rows) if rows else np.zeros(0, np.float32) for rows in scans))


class Scatter(ScatterElements):
    """The old name of ScatterElements."""

    op_domain = ""


class _Flattening(OpRun):
    """Operators that, before opset 13, see a matrix: axes before ``axis``, axes from it on."""

    op_domain = ""

    def _rows(self, x: np.ndarray, axis: int | None, function: Callable[[np.ndarray], np.ndarray]) -> tuple[np.ndarray]:
        # The evaluator fills in the default of the newest version, which is another one.
        stated = any(item.name == "axis" for item in self.onnx_node.attribute)
        at = axis if stated and axis is not None else 1
        at = at + x.ndim if at < 0 else at
        matrix = x.reshape(prod(x.shape[:at]), prod(x.shape[at:]))
        return (function(matrix).reshape(x.shape).astype(x.dtype),)


def _log_softmax(matrix: np.ndarray) -> np.ndarray:
    shifted = matrix - matrix.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def _hardmax(matrix: np.ndarray) -> np.ndarray:
    return np.arange(matrix.shape[1]) == matrix.argmax(axis=1)[:, None]


class Softmax(_Flattening):
    def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        return self._rows(x, axis, lambda matrix: np.exp(_log_softmax(matrix)))


class LogSoftmax(_Flattening):
    def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        return self._rows(x, axis, _log_softmax)


class Hardmax(_Flattening):
    def _run(self, x: np.ndarray, axis: int | None = None) -> tuple[np.ndarray]:
        return self._rows(x, axis, _hardmax)
