"""What a timing-only operator moves and executes: the value that its declaration is, and shorthands to write it.

A :class:`Signature` states an operator's instruction list, how its rows are counted and how whole units are dealt to
cores; ``metadef.cost.signature_view`` turns it into a :class:`VectorView`. Such operators are timed and cannot run.
Lists count vector instructions of one 256-byte repeat of the computed width over the largest operand, casts of 16-bit
operands included; ``row_calls`` counts the dependent instructions that every row starts anew. Lists that are no known
formula were set so that published tasks of the type agree (training steps of the first generation, 910B traces).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ELEMENTWISE, ROWS = "element-wise", "rows"
"""Cost classes of kernels that move every operand once: without rows, and row by row."""
SIGNATURE = "signature"
"""Attribute of a timing-only kernel whose signature is its own, not that of its type."""


class Rows(Enum):
    """How an operator's rows are counted: along the last axis (fractals of FRACTAL_NZ hold sixteen rows, which run
    together, unless EVERY), by planes of NC1HWC0, or not at all."""

    NONE = "none"
    LAST = "last"
    EVERY = "every"
    PLANES = "planes"


class Deal(Enum):
    """What goes whole to a core: 512-byte pieces, rows, samples (first axis) or channel blocks (second axis); ONE keeps
    everything on one core or engine."""

    FLAT = "flat"
    ROWS = "rows"
    SAMPLES = "samples"
    CHANNELS = "channels"
    ONE = "one"


class Moves(Enum):
    """What passes global memory: every operand once, results only, parts of rows, picked or scattered rows, or the
    elements of a transpose one by one."""

    ALL = "all"
    WRITTEN = "written"
    PARTS = "parts"
    PICKED = "picked"
    SCATTERED = "scattered"
    WINDOWS = "windows"
    ELEMENTS = "elements"


@dataclass(frozen=True)
class Signature:
    """What a timing-only operator executes. ``serial`` says that a core with one unit uses one set of buffers."""

    types: tuple[str, ...]
    work: tuple[str, ...] = ()
    row_calls: int = 0
    rows: Rows = Rows.NONE
    deal: Deal = Deal.FLAT
    moves: Moves = Moves.ALL
    fp32: bool = False
    serial: bool = False
    wide_work: tuple[str, ...] = ()
    """The list for 32-bit operands, where it is another one."""
    scalar: float = 0.0
    """Cycles an element of what scalar code does beside the list."""
    setup: int = 0
    """Cycles of scalar code on every core before its first tile: reading axes or lists, dealing out, meeting at a
    barrier."""
    odd_work: tuple[str, ...] = ()
    """The list for planes of an odd number of pixels, which tiles of whole repeats do not divide."""

    @property
    def kind(self) -> str:
        """The cost class: how data moves if not as a whole, else what rows there are (``element-wise`` for none) and
        whether they are computed on or only moved."""
        if self.moves is not Moves.ALL:
            return self.moves.value
        if self.rows is Rows.LAST and self.work == ("copy",) and not self.scalar:
            return "row moves"
        return {Rows.NONE: ELEMENTWISE, Rows.PLANES: "planes"}.get(self.rows, ROWS)


def times(count: int, *rest: str) -> tuple[str, ...]:
    """``count`` plain instructions, one cycle a repeat each, and ``rest``."""
    return ("add",) * count + rest


SLOW = {"exp": 2, "ln": 2, "sqrt": 2, "div": 4, "reduce_sum": 3, "reduce_max": 7, "reduce_min": 7}
"""Cycles a repeat of fp32 where they are not one (910B instruction tables), for comparing lists."""
SIGMOID = ("muls", "exp", "adds", "div")


def planes(
    types: tuple[str, ...], work: tuple[str, ...], calls: int, *, wide: tuple[str, ...] = (),
    odd: tuple[str, ...] = (), serial: bool = False,
) -> Signature:  # fmt: skip
    """Kernels over planes of NC1HWC0 in fp32, whole samples to a core."""
    return Signature(
        types, work, calls, Rows.PLANES, Deal.SAMPLES, fp32=True, serial=serial, wide_work=wide, odd_work=odd
    )


def last(types: tuple[str, ...], work: tuple[str, ...], calls: int = 0, *, fp32: bool = False) -> Signature:
    """Kernels over rows of the last axis, whole rows to a core."""
    return Signature(types, work, calls, Rows.LAST, Deal.ROWS, fp32=fp32)
