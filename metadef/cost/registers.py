"""Vector kernels on chips whose vector unit computes in registers.

There an instruction list is one function a tile: a repeat's operands are loaded into registers once, pass the whole
list and are stored once. A repeat takes what the longer of two takes: the execution units, which share the instructions
out, or the ports to UB. Starting the function and the latency of its chain cost cycles once a tile, not once an
instruction. Moves that rearrange UB block by block stay what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from metadef.cost.signature_view import signature_view
from metadef.cost.vector_view import REPEAT_BYTES, VectorView, Work
from metadef.kernel import TIMING_ONLY, Kernel
from metadef.target import Target

_REARRANGING = frozenset({"copy", "transpose", "broadcast_block", "gather", "gather_block"})


def as_executed(kernel: Kernel, target: Target, listed: Callable[[Kernel, Target], VectorView]) -> VectorView:
    """A kernel's view, by ``listed`` unless it is timed only, with its instructions as the chip takes them."""
    view = signature_view(kernel, target) if kernel.algorithm == TIMING_ONLY else listed(kernel, target)
    return in_registers(view, target) if target.has_registers else view


def in_registers(view: VectorView, target: Target) -> VectorView:
    """The view with its instruction list as one function."""
    computing = [item for item in view.work if _computes(item)]
    if not computing:
        return view
    loads = [item for item in view.loads if not item.once]
    largest = max((item.total_bytes for item in (*loads, *view.stores)), default=0.0)
    stored = sum(item.total_bytes for item in view.stores) / max(largest, 1.0)
    passes = 1 + sum(_reduces(item) for item in computing if item.mnemonic != "accumulate")
    whole = function(computing, target, loads=len(loads) * passes, stores=min(stored, len(view.stores)))
    return replace(view, work=(whole, *(item for item in view.work if not _computes(item))))


def function(items: Sequence[Work], target: Target, *, loads: float, stores: float) -> Work:
    """Instructions as one function that loads and stores so many registers a repeat."""
    widest = max(items, key=_repeats)
    repeats = max(_repeats(widest), 1e-9)
    units = target.value("vector.units")
    busy = chain = 0.0
    for item in items:
        first, slope = target.vector_instruction(item.mnemonic, item.width)
        busy += _repeats(item) * (item.cycles_per_repeat or slope)
        chain += first * max(item.calls, 1.0)
    ports = max(loads * target.value("vector.load_cycles"), stores * target.value("vector.store_cycles"))
    rows = max(item.all_calls for item in items)
    ends = sum(target.vector_instruction(item.mnemonic, item.width)[0] for item in items if _reduces(item))
    by_row = rows * (target.value("vector.row_cycles") + ends)
    return replace(
        widest,
        calls=0.0,
        all_calls=0.0,
        columns=0,
        two_sources=False,
        cycles_per_repeat=max(busy / units / repeats, ports) + by_row / repeats,
        start_cycles=target.value("vector.function_cycles") + chain,
    )


def _computes(item: Work) -> bool:
    if item.scalar_cycles or (item.mnemonic in _REARRANGING and item.cycles_per_repeat):
        return False
    return bool(item.bytes or item.repeats or item.all_calls)


def _reduces(item: Work) -> bool:
    return item.mnemonic.startswith(("reduce_", "block_"))


def _repeats(item: Work) -> float:
    return item.repeats or item.bytes / REPEAT_BYTES
