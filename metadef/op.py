"""Operator prototypes of the Ascend dialect: declared once, read by verifier, folding, costing, execution and docs.

An :class:`OpDef` states ports with type sets, attributes with kind, default and range, the shape and dtype rule,
in-place pairs, the storage formats it wants, a NumPy reference in origin layout, and what its vector kernel executes.
Shape-like parameters are attributes (the ``…D`` operators of the Ascend IR), so inference never needs a tensor's value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import InferError, OperatorError, Problem, suggest
from metadef.format import TensorDesc

Attrs = Mapping[str, Any]
InferRule = Callable[[Sequence[TensorDesc | None], Attrs], list[TensorDesc]]
Reference = Callable[[Sequence[np.ndarray | None], Attrs], list[np.ndarray]]

FLOATS = (DType.FLOAT, DType.FLOAT16, DType.BF16)
INTEGERS = (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32, DType.UINT32, DType.INT64, DType.UINT64)
NUMBERS = (*FLOATS, DType.DOUBLE, *INTEGERS)
ALL_TYPES = (*NUMBERS, DType.BOOL)


class PortKind(Enum):
    REQUIRED = "required"
    OPTIONAL = "optional"
    DYNAMIC = "dynamic"


@dataclass(frozen=True)
class Port:
    """An operand. Ports with the same ``type_var`` share one type. A dynamic port takes the rest of the list."""

    name: str
    types: tuple[DType, ...] = NUMBERS
    kind: PortKind = PortKind.REQUIRED
    type_var: str = ""


class AttrKind(Enum):
    INT = "Int"
    FLOAT = "Float"
    BOOL = "Bool"
    STRING = "String"
    TYPE = "Type"
    LIST_INT = "ListInt"
    LIST_FLOAT = "ListFloat"


REQUIRED: Any = object()
_PYTHON_TYPES: dict[AttrKind, tuple[type, ...]] = {
    AttrKind.INT: (int,),
    AttrKind.FLOAT: (int, float),
    AttrKind.BOOL: (bool,),
    AttrKind.STRING: (str,),
    AttrKind.TYPE: (DType,),
    AttrKind.LIST_INT: (list, tuple),
    AttrKind.LIST_FLOAT: (list, tuple),
}


@dataclass(frozen=True)
class Attr:
    """An attribute. ``minimum`` and ``maximum`` bound a number or every item of a list of ``length`` items."""

    name: str
    kind: AttrKind
    default: Any = REQUIRED
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[Any, ...] = ()
    length: int | None = None

    def checked(self, value: Any) -> Any:
        """The value in its normal form (lists become tuples).

        Raises:
            ValueError: with a text that says what was expected.
        """
        if isinstance(value, np.generic):
            value = value.item()
        wrong_type = not isinstance(value, _PYTHON_TYPES[self.kind])
        if wrong_type or (self.kind in (AttrKind.INT, AttrKind.FLOAT) and isinstance(value, bool)):
            raise ValueError(f"attribute '{self.name}' wants {self.kind.value}, got {value!r}")
        if self.kind in (AttrKind.LIST_INT, AttrKind.LIST_FLOAT):
            cast = int if self.kind is AttrKind.LIST_INT else float
            value = tuple(cast(item) for item in value)
            if self.length is not None and len(value) != self.length:
                raise ValueError(f"attribute '{self.name}' wants {self.length} items, got {len(value)}")
        for item in value if isinstance(value, tuple) else (value,):
            low = self.minimum is not None and item < self.minimum
            if low or (self.maximum is not None and item > self.maximum):
                raise ValueError(f"attribute '{self.name}' must {self._bounds()}, got {item}")
        if self.choices and value not in self.choices:
            raise ValueError(f"attribute '{self.name}' must be one of {self.choices}, got {value!r}")
        return value

    def _bounds(self) -> str:
        if self.maximum is None:
            return f"be at least {self.minimum}"
        return f"be at most {self.maximum}" if self.minimum is None else f"lie in [{self.minimum}, {self.maximum}]"


class FormatRule(Enum):
    """Which storage formats an operator takes."""

    PLAIN = "plain"  # origin layout only
    ANY = "any"  # any format, as long as all operands of full rank agree (element-wise)
    CHANNEL = "channel"  # data operands and results in NC1HWC0 (pooling, batch normalisation)
    CONV = "conv"  # x NC1HWC0, filter FRACTAL_Z, bias plain, result NC1HWC0
    MATMUL = "matmul"  # operands and result plain or FRACTAL_NZ, as the target's cube reads them
    PICTURE = "picture"  # plain pictures of bytes, result in NC1HWC0 (AIPP)
    TRANS = "trans"  # changes the format itself (TransData)


class CostClass(Enum):
    """Which family of device kernels runs the operator."""

    CONV = "conv"
    MATMUL = "matmul"
    ELEMENTWISE = "elementwise"
    REDUCE = "reduce"
    SOFTMAX = "softmax"
    NORM = "norm"
    POOL = "pool"
    MOVE = "move"
    GATHER = "gather"
    VIEW = "view"
    HOST = "host"


VECTOR_MNEMONICS = frozenset(
    (
        "abs",
        "add",
        "adds",
        "and",
        "axpy",
        "block_reduce",
        "brcb",
        "cast",
        "compare",
        "compare_scalar",
        "copy",
        "div",
        "dup",
        "exp",
        "gather",
        "ln",
        "max",
        "maxs",
        "min",
        "mins",
        "mul",
        "muls",
        "not",
        "or",
        "rec",
        "reduce_max",
        "reduce_min",
        "reduce_sum",
        "relu",
        "rsqrt",
        "select",
        "shift",
        "sqrt",
        "sub",
    )
)
"""Vector instructions a prototype may name; a trailing ``s`` marks the form whose second operand is a scalar."""


@dataclass(frozen=True)
class VectorWork:
    """What a vector kernel executes, in ``VECTOR_MNEMONICS``; the target's instruction table prices them.

    ``per_repeat`` runs once per 256-byte repeat of the computed width, ``per_row`` once per row restart (row kernels);
    ``computes_fp32`` says that 16-bit operands are widened first (the casts are added by the cost model).
    """

    per_repeat: tuple[str, ...] = ()
    per_row: tuple[str, ...] = ()
    computes_fp32: bool = False


@dataclass(frozen=True)
class OpDef:
    """The declaration of one operator. ``inplace`` lists (input port, output port) pairs that may share memory."""

    type: str
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    infer: InferRule
    reference: Reference
    doc: str
    attrs: tuple[Attr, ...] = ()
    inplace: tuple[tuple[int, int], ...] = ()
    formats: FormatRule = FormatRule.PLAIN
    cost: CostClass = CostClass.ELEMENTWISE
    work: VectorWork = field(default_factory=VectorWork)
    domain: str = "ascend"
    since_version: int = 1

    def complete_attrs(self, given: Attrs, node: str = "") -> dict[str, Any]:
        """Attributes with defaults filled in and every value checked.

        Raises:
            InferError: unknown, missing or out-of-range attributes; all of them at once.
        """
        known = {attr.name: attr for attr in self.attrs}
        problems, result = [], {}
        for name in given:
            if name not in known:
                problems.append(
                    Problem(f"{self.type} has no attribute '{name}'", "E10501", node, hint=suggest(name, known))
                )
        for name, attr in known.items():
            if name not in given and attr.default is REQUIRED:
                problems.append(
                    Problem(f"{self.type} needs attribute '{name}'", "E10501", node, expected=attr.kind.value)
                )
                continue
            try:
                value = given.get(name, attr.default)
                result[name] = value if value is None and attr.default is None else attr.checked(value)
            except ValueError as error:
                problems.append(Problem(f"{self.type}: {error}", "E10501", node))
        if problems:
            raise InferError(problems)
        return result

    def port_names(self, count: int) -> list[str]:
        """Names of ``count`` actual inputs; a dynamic port ``x`` becomes ``x0``, ``x1``, …"""
        names: list[str] = []
        for port in self.inputs:
            if port.kind is PortKind.DYNAMIC:
                fixed_after = len(self.inputs) - self.inputs.index(port) - 1
                names += [f"{port.name}{index}" for index in range(max(0, count - len(names) - fixed_after))]
            else:
                names.append(port.name)
        return names[:count]

    def check_inputs(self, inputs: Sequence[TensorDesc | None], node: str = "") -> None:
        """Raises InferError for a missing, superfluous or wrongly typed operand; all of them at once."""
        names = self.port_names(len(inputs))
        problems = []
        if len(inputs) > len(names):
            problems.append(
                Problem(f"{self.type} takes {len(names)} operands", node=node, got=f"{len(inputs)} operands")
            )
        bound: dict[str, DType] = {}
        for position, port in self.ports_of(len(inputs)):
            desc = inputs[position] if position < len(inputs) else None
            if desc is None:
                if port.kind is not PortKind.OPTIONAL:
                    problems.append(Problem(f"{self.type} needs this operand", node=node, port=port.name))
                continue
            if desc.dtype not in port.types:
                allowed = ", ".join(item.label for item in port.types)
                problems.append(
                    Problem(
                        "element type not supported", node=node, port=port.name, expected=allowed, got=desc.dtype.label
                    )
                )
            elif port.type_var and bound.setdefault(port.type_var, desc.dtype) is not desc.dtype:
                want = bound[port.type_var].label
                problems.append(
                    Problem(
                        "element types differ",
                        node=node,
                        port=port.name,
                        expected=want,
                        got=desc.dtype.label,
                        hint="insert a Cast",
                    )
                )
        if problems:
            raise InferError(problems)

    def ports_of(self, count: int) -> Iterable[tuple[int, Port]]:
        """(position, port) for every declared port; a dynamic port takes all positions that the fixed ones leave."""
        position = 0
        for index, port in enumerate(self.inputs):
            if port.kind is PortKind.DYNAMIC:
                for _ in range(max(0, count - position - (len(self.inputs) - index - 1))):
                    yield position, port
                    position += 1
            else:
                yield position, port
                position += 1


_REGISTRY: dict[tuple[str, str], OpDef] = {}


def register(opdef: OpDef) -> OpDef:
    """Add a prototype. Registering a type twice is an error, so that one declaration stays the only one.

    Raises:
        OperatorError: the type is taken.
    """
    key = (opdef.domain, opdef.type)
    if key in _REGISTRY:
        raise OperatorError(f"operator '{opdef.type}' is already declared", code="E10501")
    _REGISTRY[key] = opdef
    return opdef


def find_op(op_type: str, domain: str = "ascend") -> OpDef | None:
    """The prototype, or None."""
    from metadef.ops import load_families

    load_families()
    return _REGISTRY.get((domain, op_type))


def get_op(op_type: str, node: str = "") -> OpDef:
    """The prototype of an Ascend operator.

    Raises:
        OperatorError: E10501, with near misses by name.
    """
    opdef = find_op(op_type)
    if opdef is None:
        raise OperatorError(
            f"operator type '{op_type}' is not declared",
            code="E10501",
            node=node,
            hint=suggest(op_type, all_op_types()),
        )
    return opdef


def all_op_types() -> list[str]:
    """Declared Ascend operator types, sorted."""
    from metadef.ops import load_families

    load_families()
    return sorted(op_type for domain, op_type in _REGISTRY if domain == "ascend")
