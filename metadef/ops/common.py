"""Shape and dtype rules, ports and attributes that several families of prototypes share."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, Shape, TensorDesc
from metadef.op import ALL_TYPES, FLOATS, NUMBERS, Attr, AttrKind, Attrs, InferRule, Port, PortKind
from metadef.ops.geometry import Descs, broadcast_shapes

REAL = (*FLOATS, DType.DOUBLE)
"""Types of operators that make sense for real numbers only."""
SIGNED = (*REAL, DType.INT8, DType.INT16, DType.INT32, DType.INT64)
INDEX = (DType.INT32, DType.INT64)

X = Port("x", NUMBERS, type_var="T")
X_REAL = Port("x", REAL, type_var="T")
X_ANY = Port("x", ALL_TYPES, type_var="T")
Y = Port("y", ALL_TYPES, type_var="T")


def operand(inputs: Descs, position: int = 0) -> TensorDesc:
    """A required operand's descriptor (presence was checked by ``OpDef.check_inputs``)."""
    desc = inputs[position]
    if desc is None:
        raise InferError("operand is missing", code="E14001", got=f"nothing at position {position}")
    return desc


def array(inputs: Sequence[np.ndarray | None], position: int = 0) -> np.ndarray:
    """A required operand's value."""
    value = inputs[position]
    if value is None:
        raise InferError("operand is missing", code="E14001", got=f"nothing at position {position}")
    return value


def plain(shape: Shape, dtype: DType, fmt: Format = Format.ND) -> TensorDesc:
    """A descriptor in plain layout; a tag that needs four axes falls back to ND for other ranks."""
    tag = fmt if len(shape) == 4 else Format.ND
    return TensorDesc(tuple(int(size) for size in shape), dtype, tag, tag)


def like(desc: TensorDesc, shape: Shape | None = None, dtype: DType | None = None) -> TensorDesc:
    """A plain descriptor that keeps what is not given; the axis letters are kept while the rank stays four."""
    return plain(desc.origin_shape if shape is None else shape, dtype or desc.dtype, desc.origin_format)


def same_as_first(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
    """Result like operand 0."""
    return [like(operand(inputs))]


def broadcast_rule(dtype: DType | None = None, typed_by: int = 0) -> InferRule:
    """All operands broadcast; the result has the type of operand ``typed_by``, or ``dtype``."""

    def rule(inputs: Descs, attrs: Attrs) -> list[TensorDesc]:
        present = [desc for desc in inputs if desc is not None]
        shape = broadcast_shapes(*(desc.origin_shape for desc in present))
        tags = [desc.origin_format for desc in present if len(desc.origin_shape) == len(shape)]
        tag = next((fmt for fmt in tags if fmt is not Format.ND), Format.ND)
        return [plain(shape, dtype or operand(inputs, typed_by).dtype, tag)]

    return rule


def arrays_as_descs(inputs: Sequence[np.ndarray | None]) -> list[TensorDesc | None]:
    """Descriptors that carry the shapes of values, so that references share the geometry of inference."""
    return [None if value is None else TensorDesc(value.shape, DType.FLOAT) for value in inputs]


def unary_reference(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., list[np.ndarray]]:
    """Reference of a one-operand operator without attributes. Floating-point faults give inf or NaN, not warnings."""

    def reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [function(array(inputs))]

    return reference


def binary_reference(function: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Callable[..., list[np.ndarray]]:
    """Reference of a two-operand operator without attributes."""

    def reference(inputs: Sequence[np.ndarray | None], attrs: Attrs) -> list[np.ndarray]:
        with np.errstate(all="ignore"):
            return [function(array(inputs, 0), array(inputs, 1))]

    return reference


def optional(name: str, types: tuple[DType, ...], type_var: str = "") -> Port:
    return Port(name, types, PortKind.OPTIONAL, type_var)


def window_attr(name: str, default: tuple[int, ...] | None = None, minimum: int = 1) -> Attr:
    """A list of four in N, C, H, W order, such as ``strides``; N and C entries must be 1 (see ``check_window``)."""
    if default is None:
        return Attr(name, AttrKind.LIST_INT, minimum=minimum, length=4)
    return Attr(name, AttrKind.LIST_INT, default, minimum=minimum, length=4)


def check_window(attrs: Attrs, *names: str) -> None:
    """Raises InferError if a window attribute moves along N or C."""
    for name in names:
        value = attrs[name]
        if tuple(value[:2]) != (1, 1):
            raise InferError(
                f"attribute '{name}' may only act on H and W",
                code="E14001",
                expected="(1, 1, h, w)",
                got=str(tuple(value)),
            )


PADS = Attr("pads", AttrKind.LIST_INT, (0, 0, 0, 0), minimum=0, length=4)
DATA_FORMAT = Attr("data_format", AttrKind.STRING, "NCHW", choices=("NCHW",))
