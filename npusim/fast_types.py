"""Which element types of an operator this host computes with kernels of its own, and which by the NumPy twin alone."""

from __future__ import annotations

from dataclasses import dataclass

from metadef.dtype import DType
from metadef.op import CostClass, get_op
from metadef.passes.placement import DEVICE_TYPES, OTHER_TYPES
from npusim.kernels.plans import planned_types
from npusim.kernels.plans.site import ELEMENT_NAMES
from npusim.kernels.plans.vector import FLOAT_ONLY

_BY_WIDTH = (CostClass.MOVE, CostClass.GATHER)
"""Families whose kernels move elements of any type by their bytes."""
_MIXED = frozenset({"ResizeBilinearV2D"})
"""Operators of those families that compute all the same."""


@dataclass(frozen=True)
class HostTypes:
    """Types of an operator's first operand that the AI cores take: with a fast kernel here, and without one."""

    fast: tuple[DType, ...]
    slow: tuple[DType, ...]


def host_types(op_type: str) -> HostTypes:
    """Raises OperatorError if nobody declares the operator.

    A single task may still fall back, for its layout or attributes: ``LoadedProgram.fallbacks`` says why.
    """
    opdef = get_op(op_type)
    taken = DEVICE_TYPES.get(opdef.cost, frozenset()) | OTHER_TYPES.get(op_type, frozenset())
    types = [dtype for dtype in opdef.inputs[0].types if dtype in taken] if opdef.inputs else []
    if opdef.cost is CostClass.VIEW:
        return HostTypes(tuple(types), ())
    known = set(DType) if opdef.cost in _BY_WIDTH and op_type not in _MIXED else set(ELEMENT_NAMES)
    if op_type in FLOAT_ONLY:
        known = {dtype for dtype in known if dtype.is_float}
    fast = tuple(dtype for dtype in types if op_type in planned_types() and dtype in known)
    return HostTypes(fast, tuple(dtype for dtype in types if dtype not in fast))
