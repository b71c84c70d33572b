"""Vector operators with published times: profiles of networks, loops, benchmark suites."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from pathlib import Path

from metadef.cost.signature_view import signature_kernel
from metadef.cost.signatures import default_signature, find_signature
from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.op import CostClass, find_op
from metadef.select.vector import choose_vector_kernel
from metadef.target import Target
from timing_data import DTYPES, Pair, Sample, collect, kernel_us, parse_shapes, rows_of
from timing_split import Adjust, published

_ALIASES = {
    "AddN": "AccumulateNV2", "ReduceSum": "ReduceSumD", "BroadcastTo": "BroadcastToD", "mish": "Mish",
    "sigmoid": "Sigmoid", "Softmax": "SoftmaxV2",
    "exp": "Exp", "gelu": "Gelu", "maximum": "Maximum", "softmax": "SoftmaxV2", "rms_norm": "RmsNorm",
    "19_ReLU": "Relu", "20_LeakyReLU": "LeakyRelu", "22_Tanh": "Tanh", "23_Softmax": "SoftmaxV2",
    "24_LogSoftmax": "LogSoftmaxV2", "28_HardSigmoid": "HardSigmoid", "29_Softplus": "Softplus", "31_ELU": "Elu",
    "30_Softsign": "Softsign", "21_Sigmoid": "Sigmoid", "26_GELU_": "Gelu", "40_LayerNorm": "LayerNorm",
}  # fmt: skip


def vector_kernel(
    op_type: str, inputs: list[TensorDesc], outputs: list[TensorDesc], target: Target, block_dim: int | None
) -> Kernel | None:
    """A vector operator with the compiler's own tile; ``block_dim`` overrides the number of cores."""
    name = _ALIASES.get(op_type, op_type)
    if op_type == "BiasAddGrad" and inputs[0].is_plain:
        name = "ReduceSumD"
    opdef = find_op(name)
    if opdef is None or opdef.cost in (CostClass.CONV, CostClass.MATMUL, CostClass.VIEW, CostClass.GATHER):
        return None
    attrs: dict[str, object] = {}
    rank = len(inputs[0].origin_shape)
    if name == "Cast":
        attrs["dst_type"] = outputs[0].dtype
    elif name == "TransData":
        attrs = {"src_format": inputs[0].format.name, "dst_format": outputs[0].format.name, "groups": 1}
    elif name in ("SoftmaxV2", "LogSoftmaxV2"):
        attrs["axes"] = (-1,)
    elif name == "ReduceSumD" and outputs[0].elements == 1:
        return None
    elif op_type == "BiasAddGrad":
        attrs["axes"] = tuple(axis for axis in range(rank) if axis != min(rank - 1, 1))
    elif name == "ReduceSumD":
        kept = outputs[0].origin_shape
        spare = [size for size in kept if size != 1]
        attrs["axes"] = tuple(axis for axis, size in enumerate(inputs[0].origin_shape) if size not in spare)
        attrs["keep_dims"] = len(kept) == rank
    elif name == "LayerNorm":
        attrs = {"begin_norm_axis": 1, "epsilon": 1e-5}
        size = inputs[0].dtype
        inputs = [inputs[0], *(TensorDesc(inputs[0].origin_shape[1:], size) for _ in range(2))]
    elif name == "RmsNorm":
        attrs["epsilon"] = 1e-6
        inputs = [inputs[0], TensorDesc(inputs[0].origin_shape[-1:], inputs[0].dtype)]
        outputs = outputs[:1]
    elif opdef.cost is not CostClass.ELEMENTWISE:
        return None
    if name in ("Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum"):
        inputs = inputs[:2]
    kernel = Kernel(name, Engine.VECTOR, tuple(inputs), tuple(outputs), attrs)
    return choose_vector_kernel(kernel, target, block_dim=block_dim)


def stored_desc(shape: tuple[int, ...], dtype: DType, fmt: str, target: Target) -> TensorDesc:
    """A descriptor from a storage shape as a profiler prints it (``NC1HWC0:1`` names a sub-format)."""
    fmt = fmt.partition(":")[0]
    if fmt == "NC1HWC0" and len(shape) == 5:
        n, c1, h, w, c0 = shape
        return TensorDesc((n, c1 * c0, h, w), dtype, Format.NCHW, Format.NC1HWC0, c0)
    if fmt == "FRACTAL_Z" and len(shape) == 4:
        depth, n1, rows, c0 = shape
        return TensorDesc((n1 * rows, depth * c0, 1, 1), dtype, Format.NCHW, Format.FRACTAL_Z, c0)
    if fmt == "FRACTAL_NZ" and len(shape) > 3:
        n1, m1, rows, c0 = shape[-4:]
        return TensorDesc((*shape[:-4], m1 * rows, n1 * c0), dtype, Format.ND, Format.FRACTAL_NZ, c0)
    tag = Format.NCHW if len(shape) == 4 else Format.ND
    return TensorDesc(shape, dtype, tag, tag)


def profiled_vectors(
    keep: Callable[[dict[str, str]], bool],
    form: str,
    *,
    cold: bool = False,
    file: str = "op_profiler_910b",
    adjust: Adjust = published,
) -> Callable[[Path], Sample]:
    """Vector operators of a profile, with the published number of cores."""

    def build(data: Path) -> Sample:
        parameters = _parameter_shapes(data, file)

        def predict(row: dict[str, str], target: Target) -> Pair | None:
            outputs = "" if row["output_shapes"] == "N/A" else row["output_shapes"]
            types = row["input_dtypes"].split(";"), row["output_dtypes"].split(";")
            if row["output_shapes"] == "N/A":
                types = types[0], types[0][:3]
                outputs = ";".join(row["input_shapes"].split(";")[:3])
            if any(name not in DTYPES for part in types for name in part if name):
                return None
            formats = row["input_formats"].split(";"), row["output_formats"].split(";")
            shapes = parse_shapes(row["input_shapes"]), parse_shapes(outputs)
            sides = [
                [stored_desc(shape, DTYPES[dtype], fmt, target) for shape, dtype, fmt in zip(*parts) if dtype]
                for parts in zip(shapes, types, formats)
            ]
            count = 1 if row["op_type"] in ("ReduceSum", "BroadcastTo", "Transpose") else len(sides[0])
            cores = int(float(row["block_dim"])) if row["block_dim"] else None
            kernel = vector_kernel(row["op_type"], sides[0][:count], sides[1], target, cores)
            if kernel is None and find_signature(row["op_type"]):
                kernel = signature_kernel(row["op_type"], *sides, target, block_dim=cores)
            if kernel is None:
                return None
            far = _far(row, shapes[0], sides[0], parameters)
            what = f"{row['op_type']} {row['input_shapes']}"
            us = kernel_us(kernel, target, form, cold=[cold or item for item in far])
            blind = _left_out(row["op_type"], sides, target, cores)
            blind_us = kernel_us(blind, target, form, cold=[cold or item for item in far]) if blind else None
            return Pair(row["id"], what, float(row["duration_us"]), us, blind_us)

        return collect([adjust(row) for row in rows_of(data, file) if keep(row)], predict)

    return build


def _left_out(op_type: str, sides: list[list[TensorDesc]], target: Target, cores: int | None) -> Kernel | None:
    """The kernel as if its type were unknown: its cost class's default list (types with a list of their own)."""
    signature = find_signature(op_type)
    if signature is None:
        return None
    default = default_signature(signature.kind, op_type)
    return signature_kernel(op_type, *sides, target, block_dim=cores, signature=default)


_LEAST_PARAMETER = 1 << 16
"""Elements from which on it matters where a parameter lies."""
_OPTIMISERS = (
    "Adam", "ApplyRMSProp", "FusedMulApplyMomentum", "LambApplyOptimizerAssign", "LambApplyWeightAssign",
)  # fmt: skip


@cache
def _parameter_shapes(data: Path, file: str) -> frozenset[tuple[int, ...]]:
    """Shapes that the optimisers of a profile update: they, their gradients and moments are touched once a step."""
    shapes = (parse_shapes(row["input_shapes"]) for row in rows_of(data, file) if row["op_type"] in _OPTIMISERS)
    return frozenset(shape for found in shapes for shape in found if prod(shape) >= _LEAST_PARAMETER)


def _far(
    row: dict[str, str], shapes: list[tuple[int, ...]], inputs: list[TensorDesc], parameters: frozenset[tuple[int, ...]]
) -> list[bool]:
    """Inputs that were last touched a step ago, or came from the host: they lie in memory, not in L2."""
    # Flat megabytes are parameters, gradients and moments; a sum of fp32 and bf16 accumulates gradients.
    flat = len(shapes[0]) == 1 and inputs[0].payload_bytes > 1 << 20
    if flat or {"FLOAT", "DT_BF16"} <= set(row["input_dtypes"].split(";")):
        return [True] * len(inputs)
    # What the host has copied into memory is not in L2 before 910B.
    pictures = row["soc"] == "910_gen1_30core" and len(shapes[0]) == 4 and shapes[0][1] == 3
    return [shape in parameters or (pictures and port == 0) for port, shape in enumerate(shapes) if port < len(inputs)]


def is_expressible(row: dict[str, str]) -> bool:
    """A vector operator of the first generation's traces."""
    return row["trust"] != "C" and not any(name in row["op_type"] for name in ("Conv2D", "MatMul", "FusedDbnDw"))
