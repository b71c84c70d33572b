"""Every legalisation rule against ONNX Runtime on small random models of odd shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from metadef.legalize import find_rule, known_types
from tests.metadef.legalize.onnx_cases import Case, Const, check_against_ort

RNG = np.random.default_rng(20)


def f32(*shape: int, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    return RNG.uniform(low, high, shape).astype(np.float32)


def i64(*values: int) -> Const:
    return Const(np.array(values, np.int64))


def ints(*shape: int, low: int = -9, high: int = 9, dtype: Any = np.int32) -> np.ndarray:
    return RNG.integers(low, high, shape).astype(dtype)


NAN = np.array([[np.nan, -1.5, 0.0, 2.5, np.inf, -np.inf, 0.5]], np.float32)
X = f32(2, 3, 5, 7)
ONE, TWO = np.array(-0.75, np.float32), np.array(2.5, np.float32)
MASK = RNG.random((2, 3, 5)) > 0.5
UNARY = """
    Abs Ceil Cos Erf Exp Floor HardSwish Neg Reciprocal Relu Round Sigmoid Sign Sin Softplus Softsign Tanh
""".split()  # noqa: SIM905
PAIRS = ("Add", "Sub", "Mul", "Div", "Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")

ELEMENTWISE = [
    *(Case(f"{name}", name, [X], ascend=[name]) for name in UNARY),
    *(Case(f"{name}-special", name, [NAN]) for name in ("Relu", "Abs", "Exp", "Tanh", "Sigmoid", "Floor", "Erf")),
    Case("Mish", "Mish", [X], opset=18, ascend=["Mish"]),
    Case("Log", "Log", [f32(3, 5, low=0.1)]),
    Case("Sqrt", "Sqrt", [f32(3, 5, low=0.1)]),
    *(Case(f"{name}-one-number", name, [ONE]) for name in (*UNARY, "Selu", "Elu", "ThresholdedRelu", "LeakyRelu")),
    *(Case(f"{name}-two-numbers", name, [ONE, TWO]) for name in ("Mean", "Sum", "Max", "Min", *PAIRS)),
    *(Case(f"{name}-broadcast", name, [X, f32(5, 1)]) for name in PAIRS),
    *(Case(f"{name}-int", name, [ints(4, 3), ints(4, 3, low=1)]) for name in ("Add", "Sub", "Mul", "Div")),
    Case("Pow", "Pow", [f32(3, 5, low=0.1), f32(5)], ascend=["Pow"]),
    Case("Pow-square", "Pow", [f32(3, 5), Const(np.array(2.0, np.float32))]),
    Case("Pow-int-exponent", "Pow", [f32(3, 5), Const(np.array(3, np.int64))], ascend=["Pow"]),
    Case("Pow-computed-exponent", "Pow", [f32(3, 5), ints(5, low=0)], ascend=["Cast", "Pow"]),
    Case("Mod-sign", "Mod", [ints(4, 7), Const(np.array([3, -4, 5, -2, 7, 1, -1], np.int32))], ascend=["FloorMod"]),
    Case("Sum-1", "Sum", [X], ascend=[]),
    Case("Sum-2", "Sum", [X, f32(7)], ascend=["Add"]),
    Case("Sum-3", "Sum", [X, f32(7), f32(5, 1)], ascend=["AccumulateNV2"]),
    Case("Mean", "Mean", [X, f32(7), f32(2, 3, 5, 7)]),
    Case("Max", "Max", [X, f32(7), f32(5, 1)], ascend=["Maximum", "Maximum"]),
    Case("Min-nan", "Min", [NAN, f32(7)]),
    Case("Clip-attr", "Clip", [X], {"min": -0.5, "max": 1.0}, opset=10, ascend=["ClipByValue"]),
    Case("Clip-operands", "Clip", [X, Const(np.float32(-0.5)), Const(np.float32(1))], ascend=["ClipByValue"]),
    Case("Clip-low-only", "Clip", [X, Const(np.float32(0))], ascend=["Relu"]),
    Case("Clip-relu6", "Clip", [f32(4, 5, high=9), Const(np.float32(0)), Const(np.float32(6))], ascend=["Relu6"]),
    Case("Clip-high-only", "Clip", [X, None, Const(np.float32(0.5))]),
    Case("Clip-crossed", "Clip", [X, Const(np.float32(1)), Const(np.float32(-1))]),
    Case("Clip-nothing", "Clip", [X], ascend=[]),
    Case(
        "Clip-computed", "Clip", [X, np.array(-1, np.float32), np.array(1, np.float32)], ascend=["Maximum", "Minimum"]
    ),
    Case("Clip-int", "Clip", [ints(5, 4), Const(np.array(-3, np.int32)), Const(np.array(4, np.int32))]),
    Case("LeakyRelu", "LeakyRelu", [X], ascend=["LeakyRelu"]),
    Case("LeakyRelu-alpha", "LeakyRelu", [X], {"alpha": 0.3}),
    Case("PRelu", "PRelu", [X, Const(f32(3, 1, 1))], ascend=["PRelu"]),
    Case("Elu", "Elu", [X], {"alpha": 1.3}),
    Case("Selu", "Selu", [X]),
    Case("HardSigmoid", "HardSigmoid", [f32(3, 5, low=-6, high=6)], {"alpha": 0.3}),
    Case("Gelu", "Gelu", [X], opset=20, ascend=["Gelu"]),
    Case("Gelu-tanh", "Gelu", [X], {"approximate": "tanh"}, opset=20),
    Case("ThresholdedRelu", "ThresholdedRelu", [X], {"alpha": 0.4}),
    Case("And", "And", [MASK, MASK[:, :1]], ascend=["LogicalAnd"]),
    Case("Or", "Or", [MASK, MASK[:, :1]], ascend=["LogicalOr"]),
    Case("Xor", "Xor", [MASK, MASK[:, :1]], ascend=["LogicalXor"]),
    Case("Not", "Not", [MASK], ascend=["LogicalNot"]),
    Case("IsNaN", "IsNaN", [NAN], ascend=["IsNan"]),
    Case("Where", "Where", [MASK, f32(2, 3, 5), f32(5)], ascend=["SelectV2"]),
    Case("Cast-int", "Cast", [X * 3], {"to": 6}, ascend=["Cast"]),
    Case("Cast-half", "Cast", [X], {"to": 10}, ascend=["Cast"]),
    Case("Cast-same", "Cast", [X], {"to": 1}, ascend=[]),
    Case("Cast-bool", "Cast", [NAN], {"to": 9}),
    Case("Cast-from-int", "Cast", [ints(3, 4)], {"to": 1}),
    Case("CastLike", "CastLike", [X, np.zeros(1, np.float16)], opset=15),
    Case("Identity", "Identity", [X], ascend=[]),
    Case("Dropout", "Dropout", [X], opset=7, ascend=[]),
    Case("Dropout-mask", "Dropout", [X], outputs=2),
]

CONV = [
    Case(
        "Conv",
        "Conv",
        [f32(2, 3, 9, 11), Const(f32(5, 3, 3, 2)), Const(f32(5))],
        {"strides": [2, 1], "pads": [1, 0, 2, 1]},
    ),
    Case("Conv-1x1", "Conv", [f32(1, 6, 5, 4), Const(f32(3, 6, 1, 1))], ascend=["Conv2D"]),
    Case("Conv-dilated", "Conv", [f32(1, 3, 12, 13), Const(f32(4, 3, 3, 3))], {"dilations": [2, 3]}),
    Case("Conv-groups", "Conv", [f32(2, 6, 7, 5), Const(f32(4, 3, 3, 3)), Const(f32(4))], {"group": 2}),
    Case("Conv-depthwise", "Conv", [f32(1, 5, 8, 8), Const(f32(10, 1, 3, 3))], {"group": 5, "pads": [1, 1, 1, 1]}),
    Case(
        "Conv-same-upper",
        "Conv",
        [f32(1, 2, 8, 9), Const(f32(3, 2, 2, 4))],
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    Case("Conv-same-lower", "Conv", [f32(1, 2, 8, 9), Const(f32(3, 2, 2, 4))], {"auto_pad": "SAME_LOWER"}),
    Case("Conv-valid", "Conv", [f32(1, 2, 8, 9), Const(f32(3, 2, 2, 4))], {"auto_pad": "VALID"}),
    Case("Conv-computed-filter", "Conv", [f32(1, 2, 8, 9), f32(3, 2, 2, 4)]),
    Case(
        "Conv-1d",
        "Conv",
        [f32(2, 4, 17), Const(f32(6, 2, 5)), Const(f32(6))],
        {"strides": [2], "pads": [2, 1], "group": 2, "dilations": [2]},
        ascend=["Reshape", "Conv2D", "Reshape"],
    ),
    Case("Conv-empty-batch", "Conv", [f32(0, 2, 8, 9), Const(f32(3, 2, 2, 4))]),
    Case(
        "MaxPool",
        "MaxPool",
        [X],
        {"kernel_shape": [3, 2], "strides": [2, 3], "pads": [1, 0, 1, 1]},
        ascend=["MaxPoolV3"],
    ),
    Case(
        "MaxPool-ceil",
        "MaxPool",
        [X],
        {"kernel_shape": [3, 3], "strides": [3, 3], "pads": [1, 1, 1, 1], "ceil_mode": 1},
    ),
    Case("MaxPool-1d", "MaxPool", [f32(2, 3, 11)], {"kernel_shape": [3], "strides": [2]}),
    Case("AveragePool", "AveragePool", [X], {"kernel_shape": [3, 2], "pads": [1, 0, 1, 1]}, ascend=["AvgPoolV2"]),
    Case(
        "AveragePool-include",
        "AveragePool",
        [X],
        {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2], "count_include_pad": 1},
    ),
    Case(
        "AveragePool-ceil",
        "AveragePool",
        [f32(1, 1, 4, 4)],
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1], "ceil_mode": 1},
        opset=19,
    ),
    Case("AveragePool-same", "AveragePool", [X], {"kernel_shape": [2, 3], "auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("GlobalAveragePool", "GlobalAveragePool", [X], ascend=["GlobalAveragePool"]),
    Case("GlobalAveragePool-3d", "GlobalAveragePool", [f32(2, 3, 4, 5, 6)], ascend=["ReduceMeanD"]),
    Case("GlobalMaxPool", "GlobalMaxPool", [X], ascend=["ReduceMaxD"]),
    Case("GlobalLpPool-1", "GlobalLpPool", [X], {"p": 1}, ascend=["Abs", "ReduceSumD"]),
    Case("GlobalLpPool", "GlobalLpPool", [X], ascend=["Abs", "Pow", "ReduceSumD", "Pow"]),
    Case("GlobalLpPool-3", "GlobalLpPool", [X], {"p": 3}, ascend=["Abs", "Pow", "ReduceSumD", "Pow"]),
    Case(
        "BatchNormalization",
        "BatchNormalization",
        [X, Const(f32(3)), Const(f32(3)), Const(f32(3)), Const(f32(3, low=0.1))],
        {"epsilon": 1e-3},
        ascend=["BNInfer"],
    ),
    Case(
        "BatchNormalization-2d", "BatchNormalization", [f32(4, 3), *(Const(f32(3, low=0.1)) for _ in range(4))], opset=9
    ),
    Case("InstanceNormalization", "InstanceNormalization", [X, Const(f32(3)), Const(f32(3))], ascend=["InstanceNorm"]),
    Case(
        "GroupNormalization",
        "GroupNormalization",
        [f32(2, 6, 4, 5), Const(f32(3)), Const(f32(3))],
        {"num_groups": 3},
        opset=18,
    ),
    Case(
        "GroupNormalization-21",
        "GroupNormalization",
        [f32(2, 6, 4), Const(f32(6)), Const(f32(6))],
        {"num_groups": 2},
        opset=21,
    ),
    Case("LayerNormalization", "LayerNormalization", [X, Const(f32(7)), Const(f32(7))], ascend=["LayerNorm"]),
    Case("LayerNormalization-axes", "LayerNormalization", [X, Const(f32(5, 7)), Const(f32(5, 7))], {"axis": 2}),
    Case("LayerNormalization-plain", "LayerNormalization", [X, Const(f32(7))], {"epsilon": 0.1}),
    Case("RMSNormalization", "RMSNormalization", [X, Const(f32(7))], opset=23, ascend=["RmsNorm"]),
]

MATRIX = [
    Case("Gemm", "Gemm", [f32(5, 7), Const(f32(7, 3)), Const(f32(3))], ascend=["MatMulV2"]),
    Case(
        "Gemm-trans",
        "Gemm",
        [f32(7, 5), Const(f32(3, 7)), Const(f32(1, 3))],
        {"transA": 1, "transB": 1},
        ascend=["MatMulV2"],
    ),
    Case(
        "Gemm-scaled",
        "Gemm",
        [f32(5, 7), Const(f32(7, 3)), Const(f32(3))],
        {"alpha": 0.3, "beta": 1.7},
        ascend=["MatMulV2"],
    ),
    Case("Gemm-scalar-c", "Gemm", [f32(5, 7), Const(f32(7, 3)), Const(f32(1))], ascend=["MatMulV2"]),
    Case("Gemm-column-c", "Gemm", [f32(5, 7), f32(7, 3), Const(f32(5, 1))], {"beta": 0.5}, ascend=["MatMulV2", "Add"]),
    Case("Gemm-computed", "Gemm", [f32(5, 7), f32(7, 3), f32(3)], {"alpha": 0.5, "beta": 2.0}),
    Case("Gemm-no-c", "Gemm", [f32(5, 7), f32(7, 3)], {"alpha": 0.5}, ascend=["MatMulV2", "Mul"]),
    Case("MatMul", "MatMul", [f32(5, 7), f32(7, 3)], ascend=["MatMulV2"]),
    Case("MatMul-stack", "MatMul", [f32(2, 3, 5, 7), f32(7, 3)], ascend=["BatchMatMulV2"]),
    Case("MatMul-broadcast", "MatMul", [f32(2, 1, 5, 7), f32(3, 7, 4)]),
    Case("MatMul-vector-left", "MatMul", [f32(7), f32(2, 7, 4)]),
    Case("MatMul-vector-right", "MatMul", [f32(2, 5, 7), f32(7)]),
    Case("MatMul-dot", "MatMul", [f32(7), f32(7)]),
    Case("MatMul-k0", "MatMul", [f32(3, 0), f32(0, 4)]),
    Case("Softmax-13", "Softmax", [X], {"axis": 1}, opset=13, ascend=["SoftmaxV2"]),
    Case("Softmax-last", "Softmax", [X], opset=13, ascend=["SoftmaxV2"]),
    Case("Softmax-flat", "Softmax", [X], opset=9, ascend=["Reshape", "SoftmaxV2", "Reshape"]),
    Case("Softmax-flat-2d", "Softmax", [f32(3, 9)], opset=9, ascend=["SoftmaxV2"]),
    Case("LogSoftmax", "LogSoftmax", [X], {"axis": -2}, ascend=["LogSoftmaxV2"]),
    Case("LogSoftmax-flat", "LogSoftmax", [X], {"axis": 2}, opset=11),
]

REDUCE = [
    *(
        Case(f"{name}-old", name, [X], {"axes": [1, -1], "keepdims": 0}, opset=11)
        for name in known_types()
        if name.startswith("Reduce")
    ),
    *(
        Case(f"{name}-new", name, [f32(2, 3, 5, low=0.1), i64(-2)], opset=18)
        for name in known_types()
        if name.startswith("Reduce")
    ),
    Case("ReduceSum-13", "ReduceSum", [X, i64(0, 2)], {"keepdims": 0}, opset=13, ascend=["ReduceSumD"]),
    Case("ReduceSum-all", "ReduceSum", [X], opset=13),
    Case("ReduceSum-noop", "ReduceSum", [X], {"noop_with_empty_axes": 1}, opset=13, ascend=[]),
    Case("ReduceSumSquare-noop", "ReduceSumSquare", [X], {"noop_with_empty_axes": 1}, opset=18, ascend=["Mul"]),
    Case("ReduceMax-int", "ReduceMax", [ints(4, 5), i64(1)], opset=18),
    Case("ReduceLogSumExp-large", "ReduceLogSumExp", [f32(2, 3, 5) * 200, i64(0, 2)], {"keepdims": 0}, opset=18),
    Case("TopK", "TopK", [np.round(X), i64(3)], {"axis": 2}, outputs=2, ascend=["TopKD", "Cast"]),
    Case("TopK-smallest", "TopK", [np.round(X), i64(4)], {"largest": 0}, opset=11, outputs=2, ascend=["TopKD", "Cast"]),
    Case("TopK-attribute", "TopK", [X], {"axis": 1, "k": 2}, opset=9, outputs=2, ascend=["TopKD", "Cast"]),
    Case("TopK-ints", "TopK", [ints(4, 60), i64(60)], outputs=2, ascend=["TopKD", "Cast"]),
    Case("ArgMax", "ArgMax", [X], {"axis": -1}, ascend=["ArgMaxD"]),
    Case("ArgMin", "ArgMin", [np.round(X)], {"axis": 1, "keepdims": 0}, ascend=["ArgMinD"]),
]

MOVE = [
    Case("Reshape", "Reshape", [X, i64(0, -1, 7)], ascend=["Reshape"]),
    Case("Flatten", "Flatten", [X], {"axis": 2}, ascend=["Flatten"]),
    Case("Flatten-0", "Flatten", [X], {"axis": 0}),
    Case("Flatten-rank", "Flatten", [X], {"axis": 4}),
    Case("Squeeze", "Squeeze", [f32(1, 3, 1, 5), i64(-2)], ascend=["Squeeze"]),
    Case("Squeeze-all", "Squeeze", [f32(1, 3, 1, 5)], opset=11),
    Case("Unsqueeze", "Unsqueeze", [f32(3, 5), i64(-1, 0)], ascend=["Unsqueeze"]),
    Case("Unsqueeze-old", "Unsqueeze", [f32(3, 5)], {"axes": [0, 2]}, opset=11),
    Case("Transpose", "Transpose", [X], {"perm": [0, 2, 3, 1]}, ascend=["TransposeD"]),
    Case("Transpose-reverse", "Transpose", [X]),
    Case("Transpose-same", "Transpose", [X], {"perm": [0, 1, 2, 3]}, ascend=[]),
    Case("Concat", "Concat", [f32(2, 3, 4), f32(2, 5, 4), f32(2, 0, 4)], {"axis": -2}, ascend=["ConcatD"]),
    Case("Concat-one", "Concat", [X], {"axis": 1}, ascend=[]),
    Case("Split", "Split", [f32(6, 4)], {"axis": 0}, opset=11, outputs=3, ascend=["SplitD"]),
    Case("Split-sizes", "Split", [f32(7, 4), i64(2, 4, 1)], outputs=3, ascend=["SplitVD"]),
    Case("Split-uneven", "Split", [f32(7, 4)], {"num_outputs": 3}, opset=18, outputs=3, ascend=["SplitVD"]),
    Case(
        "Slice-old",
        "Slice",
        [X],
        {"starts": [1, -3], "ends": [100, -1], "axes": [1, 3]},
        opset=9,
        ascend=["StridedSliceD"],
    ),
    Case("Slice-steps", "Slice", [X, i64(100, 4), i64(-100, -1), i64(3, 2), i64(-2, -1)]),
    Case("Slice-huge", "Slice", [X, i64(1), i64(2**63 - 1), i64(-1)]),
    Case("Slice-reverse", "Slice", [X, i64(-1), i64(-(2**63)), i64(3), i64(-1)], ascend=["StridedSliceD"]),
    Case("Slice-all", "Slice", [X, i64(0), i64(99)], ascend=[]),
    Case("Pad-old", "Pad", [X], {"pads": [0, 0, 1, 2, 0, 1, 0, 3], "value": 1.5}, opset=10, ascend=["PadD"]),
    Case("Pad-reflect", "Pad", [X, i64(0, 0, 1, 2, 0, 0, 3, 1)], {"mode": "reflect"}, ascend=["PadD"]),
    Case("Pad-edge", "Pad", [X, i64(0, 0, 1, 2, 0, 0, 3, 1)], {"mode": "edge"}),
    Case("Pad-negative", "Pad", [f32(5), i64(-2, 1), Const(np.float32(7))], ascend=["StridedSliceD", "PadD"]),
    Case("Pad-crop", "Pad", [f32(9), i64(-2, -1)], ascend=["StridedSliceD"]),
    Case("Pad-axes", "Pad", [X, i64(1, 2, 0, 1), None, i64(-1, 1)], opset=18),
    Case("Expand", "Expand", [f32(3, 1), i64(2, 1, 6)], ascend=["BroadcastToD"]),
    Case("Expand-two-way", "Expand", [f32(3, 1), i64(1, 2)]),
    Case("Tile", "Tile", [f32(2, 3), i64(2, 3)], ascend=["TileD"]),
    Case("Gather", "Gather", [X, Const(np.array([[1, -1], [0, 2]], np.int64))], {"axis": 1}, ascend=["GatherV2"]),
    Case("Gather-scalar", "Gather", [X, Const(np.array(-2, np.int64))], {"axis": 2}),
    Case("Gather-computed", "Gather", [f32(11, 3), ints(2, 5, low=0, high=11)]),
    Case(
        "GatherElements",
        "GatherElements",
        [f32(4, 5), ints(3, 5, low=-4, high=4, dtype=np.int64)],
        ascend=["GatherElements"],
    ),
    Case("DepthToSpace", "DepthToSpace", [f32(2, 8, 3, 4)], {"blocksize": 2}),
    Case("DepthToSpace-CRD", "DepthToSpace", [f32(2, 8, 3, 4)], {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", "SpaceToDepth", [f32(2, 2, 6, 4)], {"blocksize": 2}),
    Case("Upsample", "Upsample", [X, Const(np.array([1, 1, 2, 3], np.float32))], opset=9),
    Case(
        "Resize-double",
        "Resize",
        [X, None, Const(np.array([1, 1, 2, 2], np.float32))],
        ascend=["ResizeNearestNeighborV2D"],
    ),
    Case("Resize-sizes", "Resize", [X, None, None, i64(2, 3, 3, 11)], ascend=["GatherV2", "GatherV2"]),
    Case(
        "Resize-asymmetric",
        "Resize",
        [X, None, Const(np.array([1, 1, 0.6, 1.7], np.float32))],
        {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
]

PIXELS = f32(1, 3, 4, 5)
SCALES = Const(np.array([1, 1, 2, 1.5], np.float32))
U8, I8 = Const(np.array(7, np.uint8)), Const(np.array([-3, 0, 5], np.int8))

COMPOSED = [
    Case("ConvTranspose", "ConvTranspose", [PIXELS, Const(f32(3, 2, 3, 2))], {"strides": [2, 3]}),
    Case(
        "ConvTranspose-all",
        "ConvTranspose",
        [f32(2, 4, 4, 5), Const(f32(4, 3, 3, 2)), Const(f32(6))],
        {"strides": [2, 3], "pads": [1, 0, 2, 1], "output_padding": [1, 2], "dilations": [1, 2], "group": 2},
    ),
    Case(
        "ConvTranspose-plain",
        "ConvTranspose",
        [PIXELS, Const(f32(3, 2, 3, 3))],
        {"pads": [1, 1, 1, 1]},
        ascend=["Conv2D"],
    ),
    Case(
        "ConvTranspose-crop",
        "ConvTranspose",
        [PIXELS, Const(f32(3, 2, 1, 1))],
        {"strides": [2, 2], "pads": [1, 1, 0, 1]},
    ),
    Case(
        "ConvTranspose-upper",
        "ConvTranspose",
        [PIXELS, Const(f32(3, 2, 3, 3))],
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ),
    Case(
        "ConvTranspose-lower",
        "ConvTranspose",
        [PIXELS, Const(f32(3, 2, 3, 3))],
        {"strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ),
    Case(
        "ConvTranspose-shape",
        "ConvTranspose",
        [PIXELS, Const(f32(3, 2, 3, 3))],
        {"strides": [3, 2], "output_shape": [10, 8]},
    ),
    *(
        Case(
            f"Resize-{mode}-{transform}",
            "Resize",
            [PIXELS, None, SCALES],
            {"mode": mode, "coordinate_transformation_mode": transform},
        )
        for mode in ("linear", "cubic")
        for transform in ("half_pixel", "asymmetric", "pytorch_half_pixel")
    ),
    Case(
        "Resize-align",
        "Resize",
        [PIXELS, None, None, i64(1, 3, 7, 9)],
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    Case(
        "Resize-down",
        "Resize",
        [PIXELS, None, None, i64(1, 3, 3, 5)],
        {"mode": "linear"},
        ascend=["ResizeBilinearV2D"],
    ),
    Case(
        "Resize-ties",
        "Resize",
        [f32(1, 2, 9, 11), None, Const(np.array([1, 1, 0.6, 1.5], np.float32))],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
    ),
    Case("Resize-10-down", "Resize", [f32(1, 2, 9, 11), Const(np.array([1, 1, 0.5, 0.7], np.float32))], opset=10),
    Case("Resize-rounded", "Resize", [PIXELS, None, Const(np.array([1, 1, 1.3, 1.7], np.float32))], {"mode": "linear"}),
    Case(
        "Resize-lines",
        "Resize",
        [f32(2, 3, 5), None, Const(np.array([1, 2, 2], np.float32))],
        {"mode": "linear"},
        ascend=["GatherV2", "Mul", "GatherV2", "Mul", "Add"] * 2,
    ),
    Case(
        "Resize-cubic-inside",
        "Resize",
        [PIXELS, None, SCALES],
        {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5},
    ),
    Case(
        "Upsample-linear", "Upsample", [PIXELS, Const(np.array([1, 1, 2, 2], np.float32))], {"mode": "linear"}, opset=9
    ),
    *(
        Case(f"Einsum-{equation}", "Einsum", [f32(*shape) for shape in shapes], {"equation": equation})
        for equation, *shapes in (
            ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
            ("ij, kj -> ki", (3, 4), (5, 4)),
            ("bhqd,bkhd->bhqk", (2, 3, 4, 5), (2, 6, 3, 5)),
            ("...ij,...jk->...ik", (2, 2, 3, 4), (2, 2, 4, 5)),
            ("ij,jk", (3, 4), (4, 5)),
            ("ai,bi->ab", (3, 1), (2, 1)),
            ("i,j->ji", (3,), (4,)),
            ("bi,bi->b", (2, 3), (2, 3)),
            ("bi,bij->bj", (2, 3), (2, 3, 4)),
            ("ijk,l->kl", (2, 3, 4), (5,)),
            ("ij->ji", (3, 4)),
            ("bij->b", (2, 3, 4)),
            ("ij->", (3, 4)),
            ("ij,ij->", (3, 4), (3, 4)),
        )
    ),
    Case("LRN", "LRN", [f32(2, 7, 3, 4, low=-9, high=9)], {"size": 3, "alpha": 0.3, "beta": 0.6, "bias": 1.5}),
    Case("MeanVarianceNormalization", "MeanVarianceNormalization", [X], opset=13),
    Case("Celu", "Celu", [X], {"alpha": 1.7}),
    Case("Celu-one-number", "Celu", [ONE], {"alpha": 1.7}),
    Case("DequantizeLinear", "DequantizeLinear", [ints(3, 5, dtype=np.uint8, low=0), Const(np.float32(0.03)), U8]),
    Case("DequantizeLinear-axis", "DequantizeLinear", [ints(2, 3, 5, dtype=np.int8), Const(f32(3, low=0.1)), I8]),
    Case("DequantizeLinear-one", "DequantizeLinear", [ints(5, dtype=np.int8), Const(f32(1, low=0.1))]),
    Case("DequantizeLinear-plain", "DequantizeLinear", [ints(3, 5), Const(np.float32(0.03))]),
    Case("QuantizeLinear", "QuantizeLinear", [X * 90, Const(np.float32(0.7)), U8]),
    Case("QuantizeLinear-axis", "QuantizeLinear", [X * 90, Const(f32(3, low=0.5)), I8], {"axis": 1}),
    Case("QuantizeLinear-halves", "QuantizeLinear", [np.arange(-9, 9, dtype=np.float32) / 2, Const(np.float32(1))]),
    Case("Trilu", "Trilu", [f32(2, 5, 4), Const(np.array(-1, np.int64))]),
    Case("Trilu-lower", "Trilu", [f32(5, 6)], {"upper": 0}),
    Case("CumSum", "CumSum", [f32(2, 5, 4), Const(np.array(1, np.int64))], ascend=["Cumsum"]),
    Case("CumSum-reverse", "CumSum", [f32(3, 5), Const(np.array(-1, np.int32))], {"reverse": 1, "exclusive": 1}),
    Case("OneHot", "OneHot", [ints(2, 3, low=-6, high=7, dtype=np.int64), Const(np.array(5, np.int64)), f32(2)]),
    Case("OneHot-axis", "OneHot", [ints(2, 3, low=0, high=4, dtype=np.int64), i64(4), Const(f32(2))], {"axis": 1}),
]

BYTES = ints(2, 20, 9, 7, low=0, high=256, dtype=np.uint8)
SIGNED = ints(2, 20, 9, 7, low=-128, high=128, dtype=np.int8)
FILTER = Const(ints(12, 20, 3, 2, low=-128, high=128, dtype=np.int8))
PADDED = {"pads": [1, 0, 2, 1], "strides": [2, 1]}
X_SCALE, ZERO = Const(np.float32(0.02)), Const(np.array(113, np.uint8))
W_SCALES, NOUGHTS = Const(f32(12, low=0.001, high=0.01)), Const(np.zeros(12, np.int8))
Y_SCALE, Y_ZERO = Const(np.float32(0.9)), Const(np.array(120, np.uint8))
ROWS = ints(3, 5, 37, low=0, high=256, dtype=np.uint8)
COLUMNS = Const(ints(37, 11, low=-128, high=128, dtype=np.int8))
SHIFTED = Const(ints(37, 11, low=60, high=180, dtype=np.uint8))

QUANTISED = [
    Case("ConvInteger", "ConvInteger", [BYTES, FILTER], PADDED, ascend=["Cast", "Add", "PadD", "Conv2D"]),
    Case("ConvInteger-zero", "ConvInteger", [BYTES, FILTER, ZERO], PADDED),
    Case("ConvInteger-signed", "ConvInteger", [BYTES, FILTER, Const(np.array(128, np.uint8))], PADDED),
    Case("ConvInteger-shifted", "ConvInteger", [BYTES, Const(ints(8, 20, 3, 3, low=40, high=160, dtype=np.uint8)), None,
         Const(np.array(99, np.uint8))], PADDED),
    Case("ConvInteger-grouped", "ConvInteger", [BYTES, Const(ints(20, 1, 3, 3, dtype=np.int8)), ZERO],
         {"group": 20, "pads": [1, 1, 1, 1]}),
    Case("QLinearConv", "QLinearConv",
         [BYTES, X_SCALE, ZERO, FILTER, W_SCALES, NOUGHTS, Y_SCALE, Y_ZERO, Const(ints(12, low=-3000, high=3000))],
         PADDED, ascend=["Cast", "Add", "PadD", "Conv2D", "AscendRequant"]),
    Case("QLinearConv-int8", "QLinearConv",
         [SIGNED, X_SCALE, Const(np.array(0, np.int8)), FILTER, Const(np.float32(0.004)), Const(np.array(0, np.int8)),
          Const(np.float32(0.4)), Const(np.array(-3, np.int8))], PADDED, ascend=["Conv2D", "AscendRequant"]),
    Case("MatMulInteger", "MatMulInteger", [ROWS, COLUMNS, ZERO]),
    Case("MatMulInteger-shifted", "MatMulInteger", [ROWS, SHIFTED, ZERO, Const(np.array(120, np.uint8))]),
    Case("MatMulInteger-columns", "MatMulInteger",
         [ROWS[0], SHIFTED, None, Const(ints(11, low=100, high=130, dtype=np.uint8))]),
    Case("MatMulInteger-run-time-zero", "MatMulInteger", [ROWS, COLUMNS, np.array([113], np.uint8)]),
    Case("MatMulInteger-signed", "MatMulInteger",
         [SIGNED[:, 0], ints(2, 7, 8, low=-128, high=128, dtype=np.int8)], ascend=["BatchMatMulV2"]),
    Case("QLinearMatMul", "QLinearMatMul",
         [ROWS, X_SCALE, ZERO, COLUMNS, Const(np.float32(0.01)), Const(np.array(0, np.int8)), Y_SCALE, Y_ZERO]),
    Case("QLinearMatMul-columns", "QLinearMatMul",
         [ROWS, X_SCALE, ZERO, COLUMNS, Const(f32(11, low=0.001, high=0.02)), Const(np.zeros(11, np.int8)), Y_SCALE,
          Y_ZERO]),
    Case("DynamicQuantizeLinear", "DynamicQuantizeLinear", [f32(5, 40, low=-3, high=7)], outputs=3),
    Case("DynamicQuantizeLinear-positive", "DynamicQuantizeLinear", [f32(5, 40, low=2, high=7)], outputs=3),
    Case("DynamicQuantizeLinear-nothing", "DynamicQuantizeLinear", [np.zeros((3, 4), np.float32)], outputs=3),
]  # fmt: skip


def _lstm(label: str, steps: int, ways: int, operands: int, **attrs: Any) -> Case:
    """An LSTM over (steps, 3, 5) with 6 hidden units and the first ``operands`` of its operands."""
    whole = [
        f32(steps, 3, 5), Const(f32(ways, 24, 5)), Const(f32(ways, 24, 6)), Const(f32(ways, 48)), None,
        f32(ways, 3, 6), f32(ways, 3, 6),
    ]  # fmt: skip
    return Case(f"LSTM-{label}", "LSTM", whole[:operands], {"hidden_size": 6, **attrs}, outputs=3)


RECURRENT = [
    _lstm("one-step", 1, 1, 7),
    _lstm("steps", 4, 1, 7),
    _lstm("no-bias", 3, 1, 3),
    _lstm("reverse", 4, 1, 4, direction="reverse"),
    _lstm("bidirectional", 3, 2, 7, direction="bidirectional"),
]

CASES = [*ELEMENTWISE, *CONV, *MATRIX, *REDUCE, *MOVE, *COMPOSED, *QUANTISED, *RECURRENT]


@pytest.mark.parametrize("case", CASES, ids=[case.label for case in CASES])
def test_rule_agrees_with_onnxruntime(case: Case) -> None:
    model, feeds = case.model()
    graph = check_against_ort(model, feeds, case.label)
    if case.ascend is not None:
        assert [node.op_type for node in graph.nodes] == list(case.ascend)
    assert {node.layer for node in graph.nodes} <= {"layer"}
    assert {node.origins for node in graph.nodes} <= {(f"layer/{case.op_type}",)}


def test_every_rule_has_a_case() -> None:
    # Swish is newer than the opsets ONNX Runtime runs; operators with subgraphs have tests of their own.
    without = {"Swish", "If", "Loop", "Scan"}
    tried = {(case.op_type, find_rule("", case.op_type, case.opset)) for case in CASES}
    assert {name for name, _ in tried} | without >= set(known_types())
