"""The coefficients that kernels use are as good as those fitted anew."""

import math

import numpy as np
import pytest

from fit_elementary import FITS, Fit
from npusim.kernels import vmath

STATED = {
    "EXP2_LESS_1": -25.5,
    "EXPM1": -25.8,
    "ERF": -27.4,
    "HALF_TANH": -20,
    "HALF_ERF": -21.1,
    "HALF_GELU": -17.3,
    "HALF_EXP2": -18.5,
    "HALF_EXP2_ABOVE": -18.5,
    "SHARE_EXP": -25,
}


@pytest.mark.parametrize("name", FITS)
def test_coefficients_err_as_stated_and_as_little_as_can_be(name: str) -> None:
    fit, own = FITS[name], getattr(vmath, f"_{name}")
    above, under = own if fit.denominator else (own, (1.0,))
    assert (len(above), len(under)) == (fit.numerator + 1, fit.denominator + 1)
    error = fit.errors(np.array(above), np.array(under)).max()
    assert math.log2(error) <= STATED[name] + 0.05
    assert error <= 1.05 * fit.errors(*fit.solve()).max()


def test_a_quotient_is_found_again() -> None:
    fit = Fit(lambda x: (1 + 2 * x) / (1 + 0.5 * x), 0, 1, 1, 1)
    above, under = fit.solve()
    np.testing.assert_allclose(above, [1, 2], rtol=1e-6)
    np.testing.assert_allclose(under, [1, 0.5], rtol=1e-6)
