"""Large constants of a compilation kept in a file instead of in memory.

A session that compiles its model would hold the weights three times: in the graph, as the image of the device's
weights, and packed for the host. The first two are read now and then at most, so they lie in a file without a name,
mapped, and take no memory until they are read; the file is gone with its last reader.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

import numpy as np

from metadef.files import cache_folder

if TYPE_CHECKING:
    from metadef.compiler import Compilation
    from metadef.graph import Tensor

LEAST_BYTES = 1 << 20
"""Smaller constants stay in memory."""
WORTHWHILE_BYTES = 32 << 20
"""A compilation with less than this in large constants stays as it is."""


def spill(compilation: Compilation) -> None:
    """Replace large constants and weights by read-only maps. Where no file can be written nothing changes."""
    made = [compilation, *compilation.gears.values()]
    models = {id(each.model): each.model for each in made}.values()
    tensors = list({id(tensor): tensor for each in made for tensor in _large(each)}.values())
    sizes = {id(model.weights): model.weights.nbytes for model in models}
    sizes |= {id(tensor.const): tensor.const.nbytes for tensor in tensors if tensor.const is not None}
    if sum(sizes.values()) < WORTHWHILE_BYTES:
        return
    mapped: dict[int, np.ndarray] = {}
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=cache_folder()) as stream:
            for array in [*(model.weights for model in models), *(tensor.const for tensor in tensors)]:
                if array is not None and id(array) not in mapped:
                    mapped[id(array)] = _written(array, stream)
    except OSError:
        return
    for model in models:
        model.weights = mapped[id(model.weights)]
    for tensor in tensors:
        tensor.const = mapped[id(tensor.const)]


def _large(compilation: Compilation) -> Iterator[Tensor]:
    for graph in compilation.graph.graphs():
        for tensor in graph.constants():
            if tensor.const is not None and tensor.const.nbytes >= LEAST_BYTES:
                yield tensor


def _written(array: np.ndarray, stream: BinaryIO) -> np.ndarray:
    """The array as a map of the bytes that were just written."""
    if array.nbytes == 0:
        return array
    place = stream.seek(0, 2)
    stream.write(np.ascontiguousarray(array).view(np.uint8).reshape(-1).data)
    stream.flush()
    raw = np.memmap(stream, np.uint8, "r", place, (array.nbytes,))
    return raw.view(array.dtype).reshape(array.shape)
