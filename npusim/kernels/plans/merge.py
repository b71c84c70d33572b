"""Neighbouring tasks that the host carries out in one sweep: a product, and the element-wise task that reads it.

The result is rounded between the two as it is when each runs by itself, so that values stay bit for bit. Each keeps
rows of its own for runs that look at every task.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from metadef.program import Operand, Program
from npusim.kernels.desc import Call

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
    if not (isinstance(first, Call) and isinstance(second, Call)) or first.followed_by is None:
        return None
    product, follower = program.tasks[position : position + 2]
    text = _expression(second)
    between, result = product.outputs[0], follower.outputs[0]
    reads = [item for item in follower.inputs if item is not None]
    if not text or len(reads) != 1 or reads[0] != between or len(product.outputs) != 1 or between.desc != result.desc:
        return None
    # The result may lie where the product still reads, and somebody else may look for the value in between.
    spoils = readers[between.tensor] != 1 or any(_overlap(item, result) for item in product.inputs if item is not None)
    if result.address != between.address and spoils:
        return None
    return first.followed_by(text, result.address)


def _expression(call: Call) -> str:
    """The expression of `x0` alone that a dense element-wise call computes, or nothing."""
    family, *types, text = call.kernel.split(":", 3)
    plain = family == "flat" and types[0] == types[1] and types[0] in ("f16", "bf16", "f32")
    return text if plain and not _PARAMETER.search(text) else ""


def _overlap(a: Operand, b: Operand) -> bool:
    return a.address < b.address + b.payload_bytes and b.address < a.address + a.payload_bytes
