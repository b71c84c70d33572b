"""Reductions over nothing: what has a value, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import get_op


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("dtype", "value"), [(np.float32, np.nan), (np.int64, 0)])
def test_the_mean_of_nothing_is_told_in_silence(dtype: type, value: float) -> None:
    opdef = get_op("ReduceMeanD")
    attrs = opdef.complete_attrs({"axes": (0,)})
    (made,) = opdef.reference([np.zeros((0, 3), dtype)], attrs)
    np.testing.assert_array_equal(made, np.full(3, value, dtype))
    assert made.dtype == dtype
    (empty,) = opdef.reference([np.zeros((3, 0), dtype)], attrs)
    assert empty.shape == (0,)


@pytest.mark.parametrize("op_type", ["ArgMaxD", "ArgMinD"])
def test_no_element_is_the_largest_of_none(op_type: str) -> None:
    opdef = get_op(op_type)
    attrs = opdef.complete_attrs({"dimension": -1})
    (made,) = opdef.infer([TensorDesc((0, 3), DType.FLOAT)], attrs)
    assert made.origin_shape == (0,)
    with pytest.raises(InferError, match=r"largest or smallest of none.*\n.*along axis 1.*\n.*\[3, 0\]"):
        opdef.infer([TensorDesc((3, 0), DType.FLOAT)], attrs)
