"""Operators of 910B profiles: every row as the kernel that its type, shapes, formats and published cores say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from metadef.dtype import DType
from metadef.format import TensorDesc, ceil_div
from metadef.kernel import Kernel
from metadef.select.attention import KEY_COLUMNS, Attention, attention_kernel
from metadef.target import Target
from timing_chain import Chain
from timing_data import DTYPES, Microseconds, Pair, Sample, collect, parse_shapes, rows_of
from timing_recipes_conv import filter_gradient, input_gradient
from timing_vector_sets import stored_desc

FILE = "op_profiler_910b"
_INDEXED = ("ReduceSum", "BroadcastTo", "Transpose", "Slice", "StridedSlice", "Tile")
"""Operators whose further inputs are shapes, axes or positions."""
_PASSING = 1 / 3
"""Share of L2 up to which a result replaces one that nobody needs any more; a larger one drives out what is needed."""
_TILE_BYTES = 16384
"""What the runtime on the chip hands out at a time."""


def is_loop(row: dict[str, str]) -> bool:
    """A kernel launched over and over, so that code and data are warm."""
    return "microbench" in row["source"]


def is_product(row: dict[str, str]) -> bool:
    """A plain or batched matrix product."""
    return row["op_type"].startswith(("MatMul", "BatchMatMul"))


def is_attention(row: dict[str, str]) -> bool:
    return row["op_type"].startswith("FlashAttentionScore")


def is_gradient(row: dict[str, str]) -> bool:
    """A gradient of a convolution."""
    return row["op_type"] in ("Conv2DBackpropInput", "Conv2DBackpropFilter")


def protocol(row: dict[str, str]) -> str:
    """The launch mode: a loop, a runtime that schedules on the device (pypto), or a host-driven step."""
    if row["impl"] == "pypto":
        return "pypto"
    return "loop" if is_loop(row) else "trace"


def profiled(keep: Callable[[dict[str, str]], bool]) -> Callable[[Path], Sample]:
    """Rows of vector, mixed and other engines that ``keep`` marks; products and forward convolutions are apart."""

    def build(data: Path) -> Sample:
        rows = [row for row in rows_of(data, FILE) if not is_product(row) and row["op_type"] != "Conv2D"]
        return collect([row for row in rows if keep(row)], predict)

    return build


def predict(row: dict[str, str], target: Target) -> Pair:
    us = row_us(row, target)
    listed = not (is_attention(row) or is_gradient(row))
    blind = row_us(row, target, left_out=True) if listed else None
    what = f"{row['op_type']} {row['input_shapes'][:80]} {row['input_dtypes'].split(';')[0]}"
    return Pair(
        row["id"], what, float(row["duration_us"]), us, None if is_attention(row) or is_gradient(row) else blind
    )


def row_us(row: dict[str, str], target: Target, *, left_out: bool = False) -> Microseconds:
    """Microseconds of a row."""
    form = protocol(row)
    chain = Chain(target, left_out)
    inputs, outputs = _sides(row, target)
    if is_attention(row):
        kernel = _attention(row, target)
        chain.cube(kernel, [chain.hold(desc) for desc in kernel.inputs if desc is not None], chosen=True)
    elif is_gradient(row):
        _gradient(chain, row)
    else:
        if not inputs and not outputs:
            outputs = [TensorDesc((128,), DType.FLOAT)]
        inputs = inputs[: 1 if row["op_type"] in _INDEXED else len(inputs)]
        cores = int(float(row["block_dim"])) if row["block_dim"] else None
        values = [chain.hold(desc) for desc in inputs]
        chain.vector(_real_type(row, inputs), values, outputs=outputs or inputs[:1], block_dim=cores)
    far = _far(row, inputs) if len(chain.steps[0][1]) == len(inputs) else []
    warm = [not item for item in far] or [True] * len(chain.steps[0][1])
    stored = sum(item.desc.payload_bytes for item in chain.steps[-1][2])
    lasting = form == "trace" and stored > target.value("memory.l2_bytes") * _PASSING
    us = chain.us(form, warm=warm, full=any(far) or lasting)
    if row["accelerator"] == "MIX_AIV":
        us = us.plus(target.value("launch.workspace_us"))
    if form == "pypto":
        result = chain.steps[-1][2][0].desc
        return us.plus(ceil_div(result.payload_bytes, _TILE_BYTES) * target.value("launch.pypto_tile_us"))
    return us.plus(target.value("launch.foreach_us")) if row["op_type"].startswith("Foreach") else us


def _real_type(row: dict[str, str], inputs: list[TensorDesc]) -> str:
    """The operator type; kernels written by hand may add several tensors, and take stretched operands row by row."""
    if row["op_type"] == "Add" and len(inputs) > 2:
        return "AccumulateNV2"
    if row["impl"] == "ascendc" and len(inputs) == 2 and inputs[0].elements != inputs[1].elements:
        return "BroadcastByRow"
    return row["op_type"]


def _sides(row: dict[str, str], target: Target) -> tuple[list[TensorDesc], list[TensorDesc]]:
    """Descriptors of inputs and outputs; operands without a known type or shape are left out, scalars have one."""
    found = []
    for side in ("input", "output"):
        shapes = "" if row[f"{side}_shapes"] == "N/A" else row[f"{side}_shapes"]
        types, formats = row[f"{side}_dtypes"].split(";"), row[f"{side}_formats"].split(";")
        descs = []
        for shape, dtype, fmt in zip(parse_shapes(shapes), types, formats):
            if dtype in DTYPES:
                descs.append(stored_desc(shape, DTYPES[dtype], fmt, target))
        found.append(descs)
    inputs, outputs = found
    if row["output_shapes"] == "N/A":
        outputs = inputs[:3]
    if any(desc.shape for desc in inputs):
        inputs = [desc for at, desc in enumerate(inputs) if desc.shape or at == 1]
    return inputs, outputs


def _far(row: dict[str, str], inputs: list[TensorDesc]) -> list[bool]:
    """Inputs that were last touched a step ago: flat megabytes are parameters, gradients and moments, tables that rows
    are gathered from as well; a sum of fp32 and bf16 accumulates gradients."""
    if not inputs:
        return []
    flat = len(inputs[0].shape) == 1 and inputs[0].payload_bytes > 1 << 20
    mixed = {"FLOAT", "DT_BF16"} <= set(row["input_dtypes"].split(";"))
    table = row["op_type"].startswith(("Gather", "Embedding"))
    return [flat or mixed or table] * len(inputs)


def _attention(row: dict[str, str], target: Target) -> Kernel:
    """Fused attention over (length, batch, heads x width)."""
    q, k, *_ = parse_shapes(row["input_shapes"])
    dtype = DTYPES[row["input_dtypes"].split(";")[0]]
    length, batch, width = q
    head = next((side for side in (128, 64, 80, 96) if width % side == 0 and k[2] % side == 0), width)
    # Training masks out later keys, and whole blocks of them are skipped.
    masked = "BOOL" in row["input_dtypes"]
    kept = (k[0] + KEY_COLUMNS) // 2 if masked else 0
    size = Attention(batch, width // head, k[2] // head, length, k[0], head, head, dtype, kept)
    return attention_kernel(size, target, row["op_type"], gradient=row["op_type"].endswith("Grad"))


def _gradient(chain: Chain, row: dict[str, str]) -> None:
    """A convolution's gradient by its input or its filter, in blocked layout; 32-bit types as HF32."""
    shapes = [shape for shape in parse_shapes(row["input_shapes"]) if len(shape) > 1]
    (out,) = parse_shapes(row["output_shapes"])[:1]
    names = [name for name in row["input_dtypes"].split(";") if name != "INT32"]
    dtype = DTYPES[names[0]]
    if row["op_type"] == "Conv2DBackpropFilter":
        x, dy = shapes
        filter_gradient(chain, x, dy, out, dtype, row["hf32"] == "YES")
    else:
        w, dy = shapes
        input_gradient(chain, w, dy, out, dtype, row["hf32"] == "YES")
