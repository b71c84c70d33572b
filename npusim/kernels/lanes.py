"""Single channels of NC1HWC0 put elsewhere: joins, cuts, padding and shuffles off the block borders.

The result is made in groups of eight channels. Where a group's channels lie together in one block of an operand they
move as a vector, as do those of two or four runs of neighbours taken in turn (shuffles); others go one by one, and
channels from nowhere read a zero that lies still. Kernel name: `lanes:<bytes>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels.cpu import l1_bytes
from npusim.kernels.desc import Call, call, int64_table
from npusim.kernels.ir import RAW, Kernel, Val, vec

GROUP = 8
_TARGET, _IMAGE, _GROUPS, _PIXELS, _PITCH, _TABLE, _CHUNKS, _CHUNK_PIXELS = range(1, 9)
_ROW = 2 + 3 * GROUP
_RUNS = (1, 2, 4)


@dataclass(frozen=True)
class Blocked:
    """A tensor in NC1HWC0: host address and channels."""

    address: int
    channels: int

    def place(self, channel: int, pixels: int, c0: int, size: int) -> int:
        """Byte offset of a channel's first pixel in an image."""
        return (channel // c0 * pixels * c0 + channel % c0) * size

    def image_bytes(self, pixels: int, c0: int, size: int) -> int:
        return -(-self.channels // c0) * pixels * c0 * size


def lanes(
    size: int, sources: Sequence[Blocked], target: Blocked, sources_of: np.ndarray, images: int, pixels: int, c0: int
) -> Call:
    """Call for result[n, c] = sources[slot][n, channel] with (slot, channel) = sources_of[c]; a slot below 0 is zero.

    All tensors have `images` images of `pixels` pixels in blocks of `c0` channels (a multiple of 8) of `size` bytes;
    padding channels become zero.
    """
    if c0 % GROUP or size not in RAW:
        raise ValueError(f"lanes know elements of 1, 2, 4 and 8 bytes in blocks of eights, not {size} and {c0}")
    nothing = np.zeros(GROUP, np.int64)
    pitch, rows = c0 * size, []
    for first in range(0, -(-target.channels // c0) * c0, GROUP):
        places = []
        for channel in range(first, first + GROUP):
            slot, at = sources_of[channel] if channel < target.channels else (-1, 0)
            if slot < 0:
                places.append((nothing.ctypes.data, 0, 0))
            else:
                own = sources[slot]
                places.append(
                    (own.address + own.place(int(at), pixels, c0, size), own.image_bytes(pixels, c0, size), pitch)
                )
        row = [target.place(first, pixels, c0, size), _interleaved(places, size)]
        rows.append([*row, *(word for item in places for word in item)])
    # The blocks that a few groups take turns in stay in the level-1 cache.
    chunks = -(-pixels // max(1, l1_bytes() // 2 // (max(_RUNS) * pitch)))
    some = -(-pixels // max(1, chunks))
    fields = [target.address, target.image_bytes(pixels, c0, size), len(rows), pixels, pitch, int64_table(rows)]
    task = call(f"lanes:{size}", images * chunks if rows else 0, 0, [*fields, chunks, some])
    task.keep.append(nothing)
    return task


def _interleaved(places: Sequence[tuple[int, int, int]], size: int) -> int:
    """Of how many runs of neighbouring channels a group takes one after the other in turn; 0 if it does not."""
    for runs in _RUNS:
        wanted = [(places[lane % runs][0] + lane // runs * size, *places[lane % runs][1:]) for lane in range(GROUP)]
        if all(item[2] for item in places) and list(places) == wanted:
            return runs
    return 0


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `lanes:<bytes>`: a part is some pixels of one image, with all their channels."""
    size = int(parameters)
    with k.main() as (desc, part, _ctx):
        chunks, pitch, most = k.field(desc, _CHUNKS), k.field(desc, _PITCH), k.field(desc, _CHUNK_PIXELS)
        image, first = part / chunks, part % chunks * most
        pixels = k.minimum(k.field(desc, _PIXELS) - first, most)
        target = k.field(desc, _TARGET) + image * k.field(desc, _IMAGE) + first * pitch
        table = k.field(desc, _TABLE)
        with k.loop(k.field(desc, _GROUPS)) as group:
            _emit_group(k, table + group * (8 * _ROW), image, first, target, pixels, pitch, size)


def _emit_group(k: Kernel, row: Val, image: Val, first: Val, target: Val, pixels: Val, pitch: Val, size: int) -> None:
    """Eight channels of some pixels."""
    kind, out, form = RAW[size], target + k.field(row, 0), k.field(row, 1)
    steps = [k.field(row, 4 + 3 * lane) for lane in range(GROUP)]
    starts = [k.field(row, 2 + 3 * n) + image * k.field(row, 3 + 3 * n) + first * steps[n] for n in range(GROUP)]
    for runs in _RUNS:
        with k.when(form.eq(runs)), k.loop(pixels * pitch, step=pitch) as at:
            parts = [k.load(start + at, vec(kind, GROUP // runs), align=1) for start in starts[:runs]]
            while len(parts) > 1:
                parts = [k.join(*pair) for pair in zip(parts[::2], parts[1::2], strict=True)]
            order = [lane % runs * (GROUP // runs) + lane // runs for lane in range(GROUP)]
            k.store(k.shuffle(parts[0], parts[0], order), out + at, align=1)
    with k.when(form.eq(0)), k.loop(pixels) as pixel:
        values = [k.load(start + pixel * step, kind) for start, step in zip(starts, steps, strict=True)]
        k.store(k.gathered(values), out + pixel * pitch, align=1)
