"""Coefficients of the elementary functions in npusim/kernels/vmath.py, fitted anew.

    python tools/fit_elementary.py

Each function is a quotient of polynomials (or one polynomial) with the least largest weighted error, found by Lawson's
iteration: least squares at Chebyshev points whose weights grow with the error there. Prints the coefficients as fp32
holds them, and the error that those leave in exact arithmetic, as a power of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

_POINTS, _ROUNDS = 2000, 60
Function = Callable[[np.ndarray], np.ndarray]
_LN2 = math.log(2)
_erf: Function = np.vectorize(math.erf, otypes=[float])
_erfc: Function = np.vectorize(math.erfc, otypes=[float])


@dataclass(frozen=True)
class Fit:
    """What is approximated between `low` and `high` by polynomials of two degrees; `weight` multiplies the error.

    Without a weight the error is relative. The denominator begins with one.
    """

    function: Function
    low: float
    high: float
    numerator: int
    denominator: int = 0
    weight: Function | None = None

    def points(self) -> np.ndarray:
        """Chebyshev points of the interval."""
        angles = np.pi * (np.arange(_POINTS) + 0.5) / _POINTS
        return (self.low + self.high) / 2 - (self.high - self.low) / 2 * np.cos(angles)

    def errors(self, numerator: np.ndarray, denominator: np.ndarray) -> np.ndarray:
        """Weighted errors of two polynomials (coefficients from the constant upwards) at the points."""
        v = self.points()
        exact = self.function(v)
        scale = 1 / np.abs(exact) if self.weight is None else self.weight(v)
        polynomial = np.polynomial.polynomial.polyval
        return np.abs(polynomial(v, numerator) / polynomial(v, denominator) - exact) * scale

    def solve(self) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients in fp32 from the constant upwards: numerator, denominator."""
        v, n = self.points(), self.numerator + 1
        exact, extent = self.function(v), max(abs(self.low), abs(self.high))
        scale = 1 / np.abs(exact) if self.weight is None else self.weight(v)
        powers = np.vander(v / extent, max(n, self.denominator + 1), increasing=True)
        columns = np.concatenate([powers[:, :n], -exact[:, None] * powers[:, 1 : self.denominator + 1]], 1)
        importance, below, best = np.ones(v.size), np.ones(v.size), (math.inf, np.zeros(columns.shape[1]))
        for _ in range(_ROUNDS):
            row = scale * np.sqrt(importance) / below
            weighted = columns * row[:, None]
            norms = np.linalg.norm(weighted, axis=0)
            found = np.linalg.lstsq(weighted / norms, exact * row, rcond=None)[0] / norms
            below = 1 + powers[:, 1 : self.denominator + 1] @ found[n:]
            error = np.abs(powers[:, :n] @ found[:n] / below - exact) * scale
            if error.max() < best[0]:
                best = (error.max(), found)
            importance = importance * (error / error.max() + 1e-9)
            importance /= importance.mean()
        above = best[1][:n] / extent ** np.arange(n)
        under = np.concatenate([[1.0], best[1][n:] / extent ** np.arange(1, self.denominator + 1)])
        return above.astype(np.float32), under.astype(np.float32)


def _over_root(function: Function) -> Function:
    """function(x) / x as a function of x * x."""
    return lambda z: function(np.sqrt(z)) / np.sqrt(z)


def _mills(a: np.ndarray) -> np.ndarray:
    """Tail of the normal distribution over its exponential: (1 - Phi(a)) * e**(a*a/2)."""
    return 0.5 * np.exp(a * a / 2) * _erfc(a / math.sqrt(2))


FITS = {
    # (2**f - 1) / f.
    "EXP2_LESS_1": Fit(lambda f: np.expm1(f * _LN2) / f, -0.5, 0.5, 5),
    # (e**(2h) - 1 - 2h) / h**2; the error is relative to e**(2h) - 1.
    "EXPM1": Fit(
        lambda h: (np.expm1(2 * h) - 2 * h) / h**2, -0.1735, 0.1735, 4, weight=lambda h: np.abs(h**2 / np.expm1(2 * h))
    ),
    # log2(erfc(a)) / a; the error is that of erf.
    "ERF": Fit(lambda a: np.log2(_erfc(a)) / a, 1e-6, 3.92, 8, weight=lambda a: _erfc(a) * _LN2 * a / _erf(a)),
    # For results in f16: up to where they are 1.
    "HALF_TANH": Fit(_over_root(np.tanh), 1e-9, 4.52**2, 2, 3),
    "HALF_ERF": Fit(_over_root(_erf), 1e-9, 2.6**2, 2, 4),
    # For results in f16: down to where they vanish.
    "HALF_GELU": Fit(_mills, 0, 5.7, 2, 3),
    # 2**f.
    "HALF_EXP2": Fit(np.exp2, -0.5, 0.5, 4),
    "HALF_EXP2_ABOVE": Fit(np.exp2, 0, 1, 4),
    # e**r times what makes the factor of the highest power one.
    "SHARE_EXP": Fit(lambda r: np.exp(r) * 722.70837, -0.34658, 0.34658, 6),
}


def main() -> None:
    for name, fit in FITS.items():
        above, under = fit.solve()
        print(f"{name}: within 2**{math.log2(fit.errors(above, under).max()):.1f}")
        for part in (above, under)[: 1 + (fit.denominator > 0)]:
            print("   ", ", ".join(str(float(c)) for c in part))


if __name__ == "__main__":
    main()
