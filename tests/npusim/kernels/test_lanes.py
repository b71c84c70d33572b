"""Single channels put elsewhere, against indexing of the framework layout: anything, joins, and shuffles."""

from __future__ import annotations

import numpy as np
import pytest

from npusim.kernels.lanes import Blocked, lanes
from tests.npusim.kernels.inputs import address, run_both

KINDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def maps(rng: np.random.Generator, kind: str, channels: list[int]) -> np.ndarray:
    """(slot, channel) of every channel of the result; a slot below 0 is zero."""
    if kind == "join":
        return np.concatenate([np.stack([np.full(c, slot), np.arange(c)], 1) for slot, c in enumerate(channels)])
    if kind == "any":
        slots = rng.integers(-1, len(channels), rng.integers(1, 100))
        return np.array([(slot, 0 if slot < 0 else rng.integers(0, channels[slot])) for slot in slots])
    order = np.arange(channels[0]).reshape(int(kind), -1).T.ravel()
    return np.stack([np.zeros_like(order), order], 1)


@pytest.mark.parametrize("kind", ["any", "join", "2", "3", "4", "8"])
@pytest.mark.parametrize("size", [1, 2, 4, 8])
def test_agrees_with_its_twin(rng, kind, size):
    for pixels in (0, 1, 49, int(rng.integers(2, 300)), 1100):
        images, c0 = int(rng.integers(1, 4)), int(rng.choice([8, 16, 32]))
        channels = [int(rng.integers(1, 70)) for _ in range(3)]
        if kind.isdigit():
            channels = [int(kind) * int(rng.integers(1, 30))]
        table = maps(rng, kind, channels)
        shapes = [(images, -(-c // c0), pixels, c0) for c in (*channels, len(table))]
        *sources, out = (rng.integers(1, 250, shape).astype(KINDS[size]) for shape in shapes)
        own = [Blocked(address(x), c) for x, c in zip(sources, channels, strict=True)]

        def make(target: np.ndarray, own=own, table=table, images=images, pixels=pixels, c0=c0):
            return lanes(size, own, Blocked(address(target), len(table)), table, images, pixels, c0)

        got = run_both(make, out)
        plain = [x.transpose(0, 1, 3, 2).reshape(images, x.shape[1] * c0, pixels) for x in (*sources, got)]
        wanted = np.zeros_like(plain[-1])
        for channel, (slot, at) in enumerate(table):
            if slot >= 0:
                wanted[:, channel] = plain[slot][:, at]
        np.testing.assert_array_equal(plain[-1], wanted)


def test_odd_blocks_are_refused():
    with pytest.raises(ValueError, match="blocks of eights"):
        lanes(2, [], Blocked(0, 4), np.zeros((4, 2), np.int64), 1, 1, 4)
