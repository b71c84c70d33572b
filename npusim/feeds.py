"""Inputs for a run: read from ``.npy`` files, or generated from a seed where the user gives none."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from metadef.dtype import DType
from metadef.error import UsageError
from metadef.format import TensorDesc
from npusim.device import public_type


@dataclass(frozen=True)
class FeedSpec:
    """What the generator needs to know of an input; bfloat16 is the type of ml_dtypes."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @classmethod
    def of(cls, name: str, desc: TensorDesc) -> FeedSpec:
        return cls(name, desc.origin_shape, public_type(desc.dtype))


def read_array(name: str, path: str | Path) -> np.ndarray:
    """An array from a ``.npy`` file.

    NumPy stores bfloat16 as two bytes without a type ("V2"), as the files of ``run --out`` are: such an array is taken
    for bfloat16.

    Raises:
        UsageError: the file is missing, truncated or not a NumPy array (pickles are refused).
    """
    try:
        array = np.load(path, allow_pickle=False)
    except Exception as error:  # a damaged header is read as Python, and fails as that may
        raise UsageError(
            f"cannot read input '{name}'", got=f"{path}: {error}", hint="save it with numpy.save"
        ) from error
    if not isinstance(array, np.ndarray):
        raise UsageError(
            f"input '{name}' wants one array", got=f"{path} is an archive of several", hint="save it with numpy.save"
        )
    return array.view(public_type(DType.BF16)) if array.dtype == np.dtype("V2") else array


def generate_feeds(inputs: Iterable[Any], seed: int) -> dict[str, np.ndarray]:
    """An array for every input (:class:`FeedSpec` or any object with its fields).

    Floats of rank four are pictures: noise summed over scales, unit variance, so that neighbouring pixels are related
    as in photographs; bytes of rank four are pictures too, over their whole range; other floats are normal, other
    integers small and not negative.
    """
    rng = np.random.default_rng(seed)
    # NumPy's generators give a number, not an array, where there are no axes.
    return {item.name: np.asarray(_generate(rng, tuple(item.shape), np.dtype(item.dtype))) for item in inputs}


def _generate(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    if dtype == np.bool_:
        return rng.random(shape) < 0.5
    if dtype == np.uint8 and len(shape) == 4:
        return rng.integers(0, 256, shape).astype(dtype)
    if dtype.kind in "iu":
        return rng.integers(0, 10, shape).astype(dtype)
    if len(shape) == 4:
        return _picture(rng, shape).astype(dtype)
    return rng.standard_normal(shape).astype(dtype)


def _picture(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    *lead, height, width = shape
    total = np.zeros(shape)
    cells = [size for size in (4, 8, 16, 32, 64) if size <= max(height, width)] or [1]
    for size in cells:
        rows, columns = min(size, height), min(size, width)
        coarse = rng.standard_normal((*lead, rows, columns))
        row_of = np.arange(height) * rows // max(height, 1)
        column_of = np.arange(width) * columns // max(width, 1)
        total += coarse[..., row_of[:, None], column_of]
    return total / np.sqrt(len(cells))
