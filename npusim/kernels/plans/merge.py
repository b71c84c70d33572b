"""Neighbouring tasks that the host carries out in one sweep: a product or cast, and the task that reads its result.

The result is rounded between the two as it is when each runs by itself, so that values stay bit for bit. Each keeps
rows of its own for runs that look at every task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from metadef.program import Operand, Program, Region
from npusim.kernels.desc import Call

_CAST = re.compile(r"(?:flat|stream):(f16|bf16|f32):(?:f16|bf16|f32):x0")
_PARAMETER = re.compile(r"\bp\d\b")


def merged_calls(program: Program, planned: Sequence[Sequence[object] | None]) -> dict[int, Call]:
    """By position of the first of two tasks, the call that does the work of both.

    ``planned`` holds the rows of every task (None: Python runs it). Programs that jump are left as they are: a jump
    might lead between the two.
    """
    if not program.is_straight:
        return {}
    readers = Counter(item.tensor for task in program.tasks for item in task.inputs if item is not None)
    found: dict[int, Call] = {}
    for position in range(len(program.tasks) - 1):
        if position - 1 in found:
            continue
        call = _merged(program, position, planned, readers)
        if call is not None:
            found[position] = call
    return found


def _merged(
    program: Program, position: int, planned: Sequence[Sequence[object] | None], readers: Mapping[int, int]
) -> Call | None:
    rows = [planned[position] or (), planned[position + 1] or ()]
    if any(len(calls) != 1 for calls in rows):
        return None
    (first,), (second,) = rows
    before, after = program.tasks[position : position + 2]
    reads = [item for item in after.inputs if item is not None]
    if not (isinstance(first, Call) and isinstance(second, Call)) or len(before.outputs) != 1:
        return None
    between, result = before.outputs[0], after.outputs[0]
    if len(reads) != 1 or reads[0] != between:
        return None
    # The result may lie where the first task still reads, and somebody else may look for the value in between.
    sources = [item for item in before.inputs if item is not None]
    seen = readers[between.tensor] != 1 or between.region is not Region.ARENA
    spoils = seen or any(_overlap(item, result) for item in sources)
    text = _expression(second)
    if first.followed_by and text and between.desc == result.desc:
        return None if spoils and result.address != between.address else first.followed_by(text, result.address)
    cast = _CAST.fullmatch(first.kernel)
    if cast and second.preceded_by and not spoils and len(sources) == 1:
        return second.preceded_by(cast[1], sources[0].address)
    return None


def _expression(call: Call) -> str:
    """The expression of `x0` alone that a dense element-wise call computes, or nothing."""
    family, *types, text = call.kernel.split(":", 3)
    plain = family in ("flat", "stream") and types[0] == types[1] and types[0] in ("f16", "bf16", "f32")
    return text if plain and not _PARAMETER.search(text) else ""


def _overlap(a: Operand, b: Operand) -> bool:
    return a.address < b.address + b.payload_bytes and b.address < a.address + a.payload_bytes
