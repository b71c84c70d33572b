"""Building a graph of the Ascend dialect by hand: inputs, constants, layers, operators, outputs.

Attributes are checked when an operator is added, shapes when it is connected: a mistake is reported where it is made.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import UsageError
from metadef.format import Format
from metadef.graph import Graph, Tensor
from metadef.op import get_op

Operand = Tensor | np.ndarray | float | None


class GraphBuilder:
    """Adds operators one after another; every operand is a tensor, an array (it becomes a constant) or None.

    >>> import numpy as np
    >>> b = GraphBuilder("net")
    >>> x = b.input("x", (1, 3, 32, 32))
    >>> with b.layer("Block12/FFN"):
    ...     y = b.conv2d(x, np.ones((8, 3, 3, 3), np.float32), strides=2, pads=1)
    ...     y = b.op("Relu", y)
    >>> b.output(y, "y")
    >>> graph = b.build()
    >>> [node.path for node in graph.nodes]
    ['Block12/FFN/Conv2D', 'Block12/FFN/Relu']
    >>> print(graph.outputs[0].desc)
    float32[1,8,16,16]NCHW
    """

    def __init__(self, name: str) -> None:
        self.graph = Graph(name)
        self._layers: list[str] = []
        self._outputs: list[tuple[Tensor, str]] = []

    @contextmanager
    def layer(self, path: str) -> Iterator[None]:
        """A scope: nodes added inside carry the path ``Block12/FFN``; scopes nest."""
        self._layers.append(path.strip("/"))
        try:
            yield
        finally:
            self._layers.pop()

    def input(self, name: str, shape: Sequence[int], dtype: DType = DType.FLOAT, fmt: Format | None = None) -> Tensor:
        """A graph input. Without ``fmt`` four axes are N, C, H, W, and any other rank is ND.

        Raises:
            ModelError: the name is taken.
        """
        return self.graph.add_input(name, shape, dtype, fmt if fmt is not None else _tag(len(shape)))

    def const(
        self, value: np.ndarray | float | Sequence[Any], name: str = "const", fmt: Format | None = None
    ) -> Tensor:
        """A constant. Python numbers become float32; arrays keep their type.

        Raises:
            UsageError: the device has no such element type.
        """
        stored = value if isinstance(value, np.ndarray | np.generic) else np.asarray(value, np.float32)
        try:
            dtype = DType.from_numpy(stored.dtype)
        except KeyError:
            known = ", ".join(item.label for item in DType)
            raise UsageError(f"constant '{name}' has no device type", expected=known, got=str(stored.dtype)) from None
        tag = fmt if fmt is not None else _tag(stored.ndim)
        return self.graph.add_const(self._scoped(name), np.asarray(stored), tag, dtype)

    def op(self, op_type: str, *inputs: Operand, name: str = "", **attrs: Any) -> Tensor:
        """Add an operator with one result.

        Raises:
            OperatorError: the type is not declared. InferError: attributes or operands do not fit.
            UsageError: the operator has several results (use ``multi``).
        """
        made = self.multi(op_type, *inputs, name=name, **attrs)
        if len(made) != 1:
            raise UsageError(f"{op_type} has {len(made)} results", hint="call multi() and unpack them")
        return made[0]

    def multi(self, op_type: str, *inputs: Operand, name: str = "", **attrs: Any) -> tuple[Tensor, ...]:
        """Add an operator; all its results."""
        label = self._scoped(name or op_type)
        ports = get_op(op_type, label).port_names(len(inputs))
        operands = [
            item if isinstance(item, Tensor) or item is None else self.const(item, f"{name or op_type}_{port}")
            for item, port in zip(inputs, [*ports, *("operand",) * len(inputs)])
        ]
        while operands and operands[-1] is None:
            operands.pop()
        node = self.graph.add_node(op_type, operands, attrs, label, layer="/".join(self._layers), origins=(label,))
        return node.outputs

    def conv2d(
        self,
        x: Tensor,
        weight: Operand,
        bias: Operand = None,
        *,
        strides: int | Sequence[int] = 1,
        pads: int | Sequence[int] = 0,
        dilations: int | Sequence[int] = 1,
        groups: int = 1,
        name: str = "",
    ) -> Tensor:
        """Conv2D; windows are one number, (h, w) or the full list, pads also (top, bottom, left, right)."""
        return self.op(
            "Conv2D",
            x,
            weight,
            bias,
            name=name,
            strides=_window(strides),
            pads=_pads(pads),
            dilations=_window(dilations),
            groups=groups,
        )

    def pool(
        self,
        op_type: str,
        x: Tensor,
        ksize: int | Sequence[int],
        *,
        strides: int | Sequence[int] = 1,
        pads: int | Sequence[int] = 0,
        name: str = "",
        **attrs: Any,
    ) -> Tensor:
        """MaxPoolV3 or AvgPoolV2, with the short forms of ``conv2d``."""
        return self.op(op_type, x, name=name, ksize=_window(ksize), strides=_window(strides), pads=_pads(pads), **attrs)

    def output(self, tensor: Tensor, name: str = "") -> None:
        """Declare a graph output under a public name (default: the tensor's)."""
        self._outputs.append((tensor, name or tensor.name))

    def build(self) -> Graph:
        """The finished graph.

        Raises:
            UsageError: no output was declared. ContractError: an invariant is broken.
        """
        if not self._outputs:
            raise UsageError(f"graph '{self.graph.name}' has no outputs", hint="call output(tensor) first")
        self.graph.set_outputs([tensor for tensor, _ in self._outputs], [name for _, name in self._outputs])
        self.graph.verify()
        return self.graph

    def _scoped(self, name: str) -> str:
        return "/".join((*self._layers, name))


def _tag(rank: int) -> Format:
    return Format.NCHW if rank == 4 else Format.ND


def _window(value: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(value, int):
        return (1, 1, value, value)
    return tuple(value) if len(value) == 4 else (1, 1, *value)


def _pads(value: int | Sequence[int]) -> tuple[int, ...]:
    if isinstance(value, int):
        return (value,) * 4
    return tuple(value) if len(value) == 4 else (value[0], value[0], value[1], value[1])
