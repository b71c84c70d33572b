"""Every declared prototype is whole: a walk over the registry, and references on random odd shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.graph import infer_outputs
from metadef.op import (
    REQUIRED,
    VECTOR_MNEMONICS,
    CostClass,
    FormatRule,
    OpDef,
    PortKind,
    all_op_types,
    get_op,
    register,
)
from metadef.ops.quantise import packed_scale

NO_WORK = (CostClass.VIEW, CostClass.CONV, CostClass.MATMUL, CostClass.HOST)


@dataclass(frozen=True)
class Sample:
    """Operand shapes (or arrays) and attributes that exercise a prototype."""

    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)


WINDOW = {"ksize": (1, 1, 3, 2), "strides": (1, 1, 2, 1), "pads": (1, 0, 1, 1)}
BOOL = np.array([[True, False, True], [False, False, True]])
SUMS = np.arange(-3, 3, dtype=np.int32)
SAMPLES: dict[str, Sample] = {
    "Aipp": Sample(
        (np.arange(2 * 7 * 5 * 3, dtype=np.uint8).reshape(2, 7, 5, 3),),
        {
            "input_format": "RGB888_U8",
            "channels": 3,
            "crop_size": (4, 3),
            "load_start_pos": (2, 1),
            "padding": (1, 0, 0, 2),
            "dst_type": DType.FLOAT,
        },
    ),
    "AippConv2D": Sample(
        (np.arange(7 * 5 * 3, dtype=np.uint8).reshape(1, 7, 5, 3), np.float32(np.ones((4, 3, 2, 3)) / 8), (4,)),
        {
            "input_format": "RGB888_U8",
            "channels": 3,
            "crop_size": (4, 3),
            "padding": (1, 0, 0, 2),
            "strides": (1, 1, 2, 1),
            "pads": (1, 0, 1, 1),
            "dst_type": DType.FLOAT,
        },
    ),
    "DepthwiseConv2D": Sample(((2, 4, 7, 6), (2, 4, 3, 2), (8,)), {"strides": (1, 1, 2, 1), "pads": (1, 0, 2, 1)}),
    "ShuffleChannel": Sample(((2, 6, 3, 5),), {"group": 3}),
    "ResizeBilinearV2D": Sample(((2, 3, 4, 5),), {"size": (7, 3), "half_pixel_centers": True}),
    "AccumulateNV2": Sample(((2, 3, 5), (5,), (3, 1))),
    "ArgMaxD": Sample(((2, 3, 5),), {"dimension": 1}),
    "ArgMinD": Sample(((2, 3, 5),), {"dimension": -1, "keep_dims": True}),
    "AscendDequant": Sample((SUMS, packed_scale(np.float32([0.3]))), {"dtype": DType.FLOAT}),
    "AscendRequant": Sample((SUMS, packed_scale(np.float32([99]))), {"offset": 5}),
    "AvgPoolV2": Sample(((2, 3, 7, 5),), WINDOW),
    "BNInfer": Sample(((2, 3, 7, 5), (3,), (3,), (3,), (3,))),
    "BatchMatMulV2": Sample(((2, 3, 4, 5), (3, 5, 7))),
    "BroadcastToD": Sample(((3, 1),), {"shape": (2, 3, 4)}),
    "Cast": Sample(((2, 3),), {"dst_type": DType.INT32}),
    "ConcatD": Sample(((2, 3), (2, 5)), {"concat_dim": 1}),
    "Conv2D": Sample(((2, 4, 7, 6), (6, 2, 3, 2), (6,)), {"strides": (1, 1, 2, 1), "pads": (1, 0, 2, 1), "groups": 2}),
    "Conv2DTransposeD": Sample(
        ((2, 4, 5, 4), (4, 3, 3, 2), (6,)),
        {
            "input_size": (2, 6, 9, 11),
            "strides": (1, 1, 2, 3),
            "pads": (1, 1, 0, 0),
            "groups": 2,
        },
    ),
    "TopKD": Sample(((2, 3, 5),), {"k": 2, "axis": 1}),
    "Cumsum": Sample(((2, 3, 5),), {"axis": 1, "exclusive": True, "reverse": True}),
    "Flatten": Sample(((2, 3, 5),)),
    "FloorMod": Sample((np.arange(-5, 5, dtype=np.int32), np.full(10, 3, np.int32))),
    "ScatterUpdate": Sample(((5, 3), np.array([4, -5]), (2, 3))),
    "GatherElements": Sample(((4, 3), np.array([[0, -1, 3]]))),
    "GatherV2": Sample(((4, 3), np.array([[0, -1], [3, 2]]))),
    "GlobalAveragePool": Sample(((2, 3, 7, 5),)),
    "InstanceNorm": Sample(((2, 3, 7, 5), (3,), (3,))),
    "LayerNorm": Sample(((2, 3, 7), (7,), (7,))),
    "LogicalAnd": Sample((BOOL, BOOL[:1])),
    "LogicalNot": Sample((BOOL,)),
    "LogicalOr": Sample((BOOL, BOOL[:1])),
    "LogicalXor": Sample((BOOL, BOOL[:1])),
    "MatMulV2": Sample(((4, 5), (7, 5), (7,)), {"transpose_x2": True}),
    "MaxPoolV3": Sample(((2, 3, 7, 5),), WINDOW),
    "PRelu": Sample(((2, 3, 5), (3, 1))),
    "PadD": Sample(((2, 3),), {"paddings": (1, 0, 2, 3), "constant_values": 1.5}),
    "ResizeNearestNeighborV2D": Sample(((2, 3, 4, 5),), {"size": (8, 15)}),
    "FractalHeads": Sample(((2, 3, 8),), {"heads": 4}),
    "Reshape": Sample(((2, 3, 5),), {"shape": (5, -1)}),
    "RmsNorm": Sample(((2, 3, 7), (7,))),
    "SelectV2": Sample((BOOL, (2, 3), (3,))),
    "SplitD": Sample(((6, 4),), {"split_dim": 0, "num_split": 3}),
    "SplitVD": Sample(((6, 4),), {"split_dim": 0, "num_split": 3, "size_splits": (1, 0, 5)}),
    "Squeeze": Sample(((1, 3, 1, 5),), {"axis": (2,)}),
    "StridedSliceD": Sample(((5, 7),), {"begin": (4, 1), "end": (0, 6), "strides": (-2, 3), "end_mask": 1}),
    "TileD": Sample(((2, 3),), {"multiples": (2, 1)}),
    "TransData": Sample(((2, 3, 4, 5),), {"src_format": "NCHW", "dst_format": "NC1HWC0"}),
    "TransposeD": Sample(((2, 3, 5),), {"perm": (2, 0, 1)}),
    "Unsqueeze": Sample(((3, 5),), {"axes": (0, -1)}),
}


def sample_of(opdef: OpDef) -> Sample:
    if opdef.type in SAMPLES:
        return SAMPLES[opdef.type]
    return Sample(((2, 3, 5), (5,))[: len(opdef.inputs)])


def operands_of(opdef: OpDef, dtype: type) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    made = []
    for item in sample_of(opdef).operands:
        made.append(item if isinstance(item, np.ndarray) else rng.uniform(0.2, 2.0, item).astype(dtype))
    return made


def descs_of(values: list[np.ndarray]) -> list[TensorDesc | None]:
    return [TensorDesc(value.shape, DType.from_numpy(value.dtype)) for value in values]


@pytest.mark.parametrize("op_type", all_op_types())
def test_declaration_has_no_hole(op_type: str) -> None:
    opdef = get_op(op_type)
    assert len(opdef.doc) > 4 and opdef.doc.endswith(".")
    assert opdef.inputs and opdef.outputs
    assert len({port.name for port in opdef.inputs}) == len(opdef.inputs)
    assert all(port.types for port in (*opdef.inputs, *opdef.outputs))
    assert len({attr.name for attr in opdef.attrs}) == len(opdef.attrs)
    for attr in opdef.attrs:
        if attr.default is not REQUIRED:
            assert attr.checked(attr.default) == attr.default
    for source, target in opdef.inplace:
        assert source < len(opdef.inputs) and target < len(opdef.outputs)
    named = set(opdef.work.per_repeat) | set(opdef.work.per_row)
    assert named <= VECTOR_MNEMONICS
    assert bool(opdef.work.per_repeat) != (opdef.cost in NO_WORK or opdef.formats is FormatRule.PICTURE)


@pytest.mark.parametrize("op_type", all_op_types())
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_reference_keeps_what_inference_promises(op_type: str, dtype: type) -> None:
    """Shapes and element types of the reference are those inferred, in both widths; operands stay untouched."""
    opdef = get_op(op_type)
    operands = operands_of(opdef, dtype)
    attrs = opdef.complete_attrs(sample_of(opdef).attrs)
    descs = descs_of(operands)
    if dtype is np.float32:
        opdef.check_inputs(descs)
    expected = infer_outputs(opdef, descs, attrs, op_type)
    before = [value.copy() for value in operands]
    results = opdef.reference(operands, attrs)
    assert len(results) == len(expected)
    assert len(results) == len(opdef.outputs) or opdef.outputs[0].kind is PortKind.DYNAMIC
    for value, desc in zip(results, expected):
        assert value.shape == desc.origin_shape
        assert value.dtype == desc.dtype.numpy
        assert np.isfinite(value.astype(np.float64)).all()
    for value, old in zip(operands, before):
        np.testing.assert_array_equal(value, old)


@pytest.mark.parametrize("op_type", all_op_types())
def test_float32_reference_is_as_exact_as_float32(op_type: str) -> None:
    opdef = get_op(op_type)
    attrs = opdef.complete_attrs(sample_of(opdef).attrs)
    narrow = operands_of(opdef, np.float32)
    wide = [value.astype(np.float64) if value.dtype == np.float32 else value for value in narrow]
    for a, b in zip(opdef.reference(narrow, attrs), opdef.reference(wide, attrs)):
        np.testing.assert_allclose(a.astype(np.float64), b, rtol=2e-6, atol=1e-6)


def test_an_operator_of_your_own_in_ten_lines() -> None:
    from metadef.frontend.builder import GraphBuilder
    from metadef.op import FLOATS, Attr, AttrKind, Port
    from metadef.ops.evaluate import evaluate

    register(
        OpDef(
            "TestShrink",
            inputs=(Port("x", FLOATS, type_var="T"),),
            outputs=(Port("y", FLOATS, type_var="T"),),
            attrs=(Attr("lambd", AttrKind.FLOAT, 0.5),),
            infer=lambda inputs, attrs: [inputs[0]],  # type: ignore[list-item]
            reference=lambda inputs, attrs: [np.where(np.abs(inputs[0]) > attrs["lambd"], inputs[0], 0)],  # type: ignore[arg-type]
            doc="Small values become zero.",
        )
    )
    b = GraphBuilder("own")
    b.output(b.op("TestShrink", b.input("x", (3,)), lambd=1.0), "y")
    np.testing.assert_array_equal(evaluate(b.build(), {"x": np.array([-2, 0.5, 3])})["y"], [-2, 0, 3])


NAN_WINS: dict[str, Callable[[], list[np.ndarray]]] = {
    "Relu": lambda: [np.array([np.nan, 1.0])],
    "Relu6": lambda: [np.array([np.nan, 1.0])],
    "ClipByValue": lambda: [np.array([np.nan, 1.0])],
    "Maximum": lambda: [np.array([np.nan, 1.0]), np.array([1.0, 2.0])],
    "Minimum": lambda: [np.array([np.nan, 1.0]), np.array([1.0, 2.0])],
    "Sign": lambda: [np.array([np.nan, 1.0])],
    "Erf": lambda: [np.array([np.nan, 1.0])],
    "Sigmoid": lambda: [np.array([np.nan, 1.0])],
    "LeakyRelu": lambda: [np.array([np.nan, 1.0])],
    "ReduceMaxD": lambda: [np.array([[np.nan, 1.0], [1.0, 2.0]])],
    "MaxPoolV3": lambda: [np.array([[[[np.nan, 1.0], [1.0, 2.0]]]])],
}


@pytest.mark.parametrize("op_type", sorted(NAN_WINS))
def test_nan_is_not_lost(op_type: str) -> None:
    opdef = get_op(op_type)
    given = {"ReduceMaxD": {"axes": (1,)}, "MaxPoolV3": {"ksize": (1, 1, 1, 2), "strides": (1, 1, 1, 1)}}
    (result,) = opdef.reference(NAN_WINS[op_type](), opdef.complete_attrs(given.get(op_type, {})))
    flat = result.reshape(-1)
    assert np.isnan(flat[0]) and not np.isnan(flat[1:]).any()
