"""Picking elements: what is refused before anything is read."""

from __future__ import annotations

import pytest

from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import TensorDesc
from metadef.op import get_op


def test_an_index_larger_than_x_is_refused() -> None:
    opdef = get_op("GatherElements")
    attrs = opdef.complete_attrs({"dim": -1})
    x = TensorDesc((2, 3), DType.FLOAT)
    (made,) = opdef.infer([x, TensorDesc((1, 9), DType.INT64)], attrs)
    assert made.origin_shape == (1, 9)
    with pytest.raises(InferError, match=r"index is larger than x.*\n.*\[2, 3\] but along axis 1\n.*\[3, 3\]"):
        opdef.infer([x, TensorDesc((3, 3), DType.INT64)], attrs)
