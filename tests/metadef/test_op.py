"""Prototypes: attributes, ports, registry."""

from __future__ import annotations

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.error import InferError, OperatorError
from metadef.format import TensorDesc
from metadef.op import Attr, AttrKind, OpDef, all_op_types, find_op, get_op, register


def desc(dtype: DType, *shape: int) -> TensorDesc:
    return TensorDesc(shape, dtype)


def test_attributes_are_completed_and_normalised() -> None:
    attrs = get_op("Conv2D").complete_attrs({"strides": [1, 1, np.int64(2), 2]})
    assert attrs["strides"] == (1, 1, 2, 2)
    assert attrs["pads"] == (0, 0, 0, 0) and attrs["groups"] == 1


def test_all_attribute_faults_are_reported_at_once() -> None:
    with pytest.raises(InferError) as caught:
        get_op("Conv2D").complete_attrs({"stride": (1, 1, 1, 1), "groups": 0, "pads": (1, 1)}, "net/conv")
    text = str(caught.value)
    assert "4 problems" in text and "did you mean 'strides'" in text
    assert "needs attribute 'strides'" in text and "must be at least" in text and "wants 4 items" in text
    assert text.count("node 'net/conv'") == 4


@pytest.mark.parametrize(
    ("attr", "value"),
    [
        (Attr("a", AttrKind.INT), 1.5),
        (Attr("a", AttrKind.INT), True),
        (Attr("a", AttrKind.BOOL), 1),
        (Attr("a", AttrKind.STRING, choices=("x",)), "y"),
        (Attr("a", AttrKind.TYPE), "float16"),
        (Attr("a", AttrKind.LIST_INT, maximum=3), (1, 4)),
    ],
)
def test_wrong_values_are_refused(attr: Attr, value: object) -> None:
    with pytest.raises(ValueError, match="attribute 'a'"):
        attr.checked(value)


def test_a_whole_float_is_a_number_and_lists_become_tuples() -> None:
    assert Attr("a", AttrKind.FLOAT).checked(2) == 2
    assert Attr("a", AttrKind.LIST_FLOAT).checked([1, 2]) == (1.0, 2.0)


def test_operands_are_checked_all_at_once() -> None:
    with pytest.raises(InferError) as caught:
        get_op("BatchMatMulV2").check_inputs([desc(DType.INT32, 2, 3), None])
    assert "2 problems" in str(caught.value)
    assert "port 'x1'" in str(caught.value) and "port 'x2'" in str(caught.value)
    with pytest.raises(InferError, match="insert a Cast"):
        get_op("Add").check_inputs([desc(DType.FLOAT, 2), desc(DType.FLOAT16, 2)])
    with pytest.raises(InferError, match="takes 2 operands"):
        get_op("Add").check_inputs([desc(DType.FLOAT, 2)] * 3)


def test_bias_may_have_its_own_type_and_be_absent() -> None:
    x, weight = desc(DType.FLOAT16, 1, 3, 8, 8), desc(DType.FLOAT16, 4, 3, 3, 3)
    opdef = get_op("Conv2D")
    opdef.check_inputs([x, weight])
    opdef.check_inputs([x, weight, None])
    opdef.check_inputs([x, weight, desc(DType.FLOAT, 4)])


def test_dynamic_ports_are_numbered() -> None:
    assert get_op("ConcatD").port_names(3) == ["x0", "x1", "x2"]
    assert get_op("Conv2D").port_names(2) == ["x", "filter"]
    with pytest.raises(InferError, match="port 'x'"):
        get_op("ConcatD").check_inputs([desc(DType.FLOAT, 2), None])


def test_an_unknown_type_names_its_neighbours() -> None:
    with pytest.raises(OperatorError, match="did you mean 'Conv2D'"):
        get_op("Conv2d")
    assert find_op("Conv2d") is None
    assert "Conv2D" in all_op_types()


def test_a_type_is_declared_once() -> None:
    with pytest.raises(OperatorError, match="already declared"):
        register(get_op("Relu"))
    assert isinstance(get_op("Relu"), OpDef)
