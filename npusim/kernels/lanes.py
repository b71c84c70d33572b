"""Single channels of NC1HWC0 put elsewhere: joins, cuts, padding and shuffles off the block borders.

The result is made in groups of eight channels. Where a group's channels lie together in one block of an operand they
move as a vector, else one by one; channels from nowhere read a zero that lies still. Kernel name: `lanes:<bytes>`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels.desc import Call, call, int64_table
from npusim.kernels.ir import RAW, Kernel, vec

GROUP = 8
_TARGET, _IMAGE, _GROUPS, _PIXELS, _PITCH, _TABLE = range(1, 7)
_ROW = 2 + 3 * GROUP


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
        together = all(
            item == (places[0][0] + lane * size, *places[0][1:]) and item[2] for lane, item in enumerate(places)
        )
        rows.append([target.place(first, pixels, c0, size), int(together), *(word for item in places for word in item)])
    fields = [target.address, target.image_bytes(pixels, c0, size), len(rows), pixels, pitch, int64_table(rows)]
    task = call(f"lanes:{size}", images * len(rows) if pixels else 0, 0, fields)
    task.keep.append(nothing)
    return task


def generate(k: Kernel, family: str, parameters: str) -> None:
    """Emit `lanes:<bytes>`: a part is one group of eight channels of one image."""
    size = int(parameters)
    kind = RAW[size]
    with k.main() as (desc, part, _ctx):
        groups, pixels, pitch = k.field(desc, _GROUPS), k.field(desc, _PIXELS), k.field(desc, _PITCH)
        image = part / groups
        row = k.field(desc, _TABLE) + part % groups * (8 * _ROW)
        out = k.field(desc, _TARGET) + image * k.field(desc, _IMAGE) + k.field(row, 0)
        starts = [k.field(row, 2 + 3 * lane) + image * k.field(row, 3 + 3 * lane) for lane in range(GROUP)]
        steps = [k.field(row, 4 + 3 * lane) for lane in range(GROUP)]
        with k.either(k.field(row, 1).ne(0)) as (together, apart):
            with together, k.loop(pixels) as pixel:
                k.store(k.load(starts[0] + pixel * pitch, vec(kind, GROUP), align=1), out + pixel * pitch, align=1)
            with apart, k.loop(pixels) as pixel:
                at = out + pixel * pitch
                for lane in range(GROUP):
                    k.store(k.load(starts[lane] + pixel * steps[lane], kind), at + lane * size)
