"""The bundled model: a small residual network that reads handwritten digits, with pictures to try it on.

`digits_model()` and `digits_samples()` are what the demo, the first notebook and many tests start from. The files are
made by tools/train_digits.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def digits_model() -> Path:
    """Path of the ONNX file: `image` [batch, 1, 28, 28] -> `probabilities` [batch, 10]."""
    return HERE / "digits.onnx"


def digits_samples() -> DigitSamples:
    """Ten held-out pictures of every digit, in the order of the digits."""
    with np.load(HERE / "digits.npz") as stored:
        return DigitSamples(**{name: stored[name] for name in ("images", "labels", "outputs")})


@dataclass(frozen=True)
class DigitSamples:
    """Held-out pictures: `images` uint8 [100, 28, 28], `labels` uint8 [100], `outputs` float32 [100, 10].

    `outputs` holds the class probabilities that ONNX Runtime computes for the pictures.
    """

    images: np.ndarray
    labels: np.ndarray
    outputs: np.ndarray

    def as_input(self, first: int = 0, count: int | None = None) -> np.ndarray:
        """Pictures from `first` on as the model wants them: float32 [count, 1, 28, 28], grey levels / 255."""
        stop = None if count is None else first + count
        return self.images[first:stop, None].astype(np.float32) / np.float32(255)
