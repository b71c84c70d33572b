"""Published measurements as sets of (measured, predicted) pairs: one function per set, no constant of its own.

Kernels get their tiles from the compiler's own search, so a vendor's tiling counts as error here. Chips that the
package does not ship (910B2, 910B4) are derived from the published differences of their platform files.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np

from metadef.cost import engine
from metadef.cost.run import run_kernel, run_stream, task_us
from metadef.cost.streams import CoreStream, MemoryState, transfer
from metadef.dtype import DType
from metadef.error import LabError
from metadef.format import Format, TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.op import CostClass, find_op
from metadef.select.cube import choose_cube_kernel
from metadef.select.vector import choose_vector_kernel
from metadef.target import Target, load_target
from npusim.timing.l2 import L2
from npusim.timing.micro import add_tiles, read_copies

CHIPS = {
    "910B1": "Ascend910B1", "910B3": "Ascend910B3", "910B1=910B3": "Ascend910B1", "910B_A2_24c": "Ascend910B1",
    "A3_24c": "Ascend910B1", "910B_A2": "910B2", "910B2": "910B2", "910B4": "910B4", "910B_20c": "Ascend910B3",
    "310P3": "Ascend310P3",
}  # fmt: skip
"""Names in the data and the target that stands for them. An A3 die and an unnamed A2 part count as their A2 twins."""

_DERIVED = {
    "910B2": {"cores": {"clock_mhz": 1800}, "memory": {"hbm_nominal_tb_s": 1.75, "l2_tb_s": 5.06}},
    "910B4": {
        "cores": {"cube": 20, "vector": 40, "clock_mhz": 1650},
        "memory": {"hbm_nominal_tb_s": 0.8, "l2_tb_s": 3.87, "l2_bytes": 100663296},
    },
}


@dataclass(frozen=True)
class Pair:
    """One measurement. ``measured`` and ``predicted`` share a unit (microseconds or cycles)."""

    id: str
    what: str
    measured: float
    predicted: float


@dataclass(frozen=True)
class Sample:
    """A set: pairs, and how many rows of the chips concerned the data has."""

    pairs: list[Pair]
    total: int


@cache
def chip(name: str) -> Target | None:
    """The target that stands for a chip of the data, or None."""
    soc = CHIPS.get(name)
    if soc is None or soc not in _DERIVED:
        return None if soc is None else load_target(soc)
    lines = ["inherits: Ascend910B1", f"soc: Ascend{soc}"]
    for group, values in _DERIVED[soc].items():
        lines.append(f"{group}:")
        lines += [f"  {key}: {{value: {value}, source: platform file, sure: vendor}}" for key, value in values.items()]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chip.yaml"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return load_target(str(path))


def rows_of(data: Path, name: str) -> list[dict[str, str]]:
    with (data / "measured" / f"{name}.csv").open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def _sample(rows: Iterable[dict[str, str]], predict: Callable[[dict[str, str], Target], Pair | None]) -> Sample:
    """Pairs of all rows whose chip has a target; rows that cannot be expressed lower the coverage."""
    pairs, total = [], 0
    for row in rows:
        target = chip(row["soc"])
        if target is None:
            continue
        total += 1
        try:
            pair = predict(row, target)
        except LabError:
            pair = None
        if pair is not None:
            pairs.append(pair)
    return Sample(pairs, total)


# -- instructions ----------------------------------------------------------------------------------------------------

_PATHS = {
    "GM_TO_UB": "GM->UB", "UB_TO_GM": "UB->GM", "GM_TO_L1": "GM->L1", "GM_TO_L1_TRANS": "GM->L1 ND2NZ",
    "L1_TO_L0A": "L1->L0A", "L1_TO_L0B": "L1->L0B", "L1_TO_BT": "L1->BT", "L0C_TO_GM": "L0C->GM",
    "L0C_TO_GM_TRANS": "L0C->GM NZ2ND",
}  # fmt: skip


def moves(data: Path) -> Sample:
    """One transfer at a time on one core. The 910B1 curve GM->UB was taken cold, the 910B3 one warm."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        path = _PATHS.get(row["path"])
        if path is None or row["x_kind"] != "KB_per_move":
            return None
        size = float(row["x"]) * 1024
        cold = float(row["soc"] == "910B1" and path == "GM->UB")
        measured = float(row["cycles_per_move"] or 0) or size / (float(row["bandwidth_gbps"]) * 2**30) * 1.8e9
        move = transfer(target, path, cold=cold, to_memory=cold, unit_bytes=size, unit_rows=1)
        stream = CoreStream(4, None, move[None, :], 1, np.zeros((0, len(engine.WORK))), 1, 1, 1, 0)
        return Pair(row["id"], f"{path} {size:.0f} B", measured, run_stream(stream, target, 1).cycles)

    return _sample(rows_of(data, "instr_mov"), predict)


def products(data: Path) -> Sample:
    """One mmad: streamed on 910B1, isolated on 910B3."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        m, k, n = (int(row[name]) for name in "mkn")
        parts = -(-m // 16) * -(-k // 16) * -(-n // 16)
        kind = "isolated" if row["soc"] == "910B3" else "streamed"
        overhead = target.value(f"cube.{kind}_overhead_cycles")
        return Pair(row["id"], f"mmad {m}x{k}x{n}", float(row["cycles_derived"]), parts + overhead)

    return _sample(rows_of(data, "instr_mmad"), predict)


_VECTOR = {
    "VCONV": "cast", "VECTORDUP": "dup", "VCMPVS": "compare_scalar", "VCMPV": "compare", "VSEL": "select",
    "VCADD": "reduce_sum", "VCMAX": "reduce_max", "VCMIN": "reduce_min", "VCGADD": "block_sum", "VCGMAX": "block_max",
    "VCGMIN": "block_min", "VCPADD": "pair_add", "VGATHERB": "gather_block", "VLRELU": "leaky_relu",
    "VADDRELU": "add_relu", "VSHL": "shift_left", "VSHR": "shift_right", "VBRCB": "broadcast_block",
    "VREDUCE": "squeeze", "VMRGSORT": "merge_sort4",
}  # fmt: skip
_TWO_SOURCES = {"add", "sub", "mul", "max", "min", "and", "or", "select", "compare", "axpy", "add_relu"}


def vector_instructions(data: Path) -> Sample:
    """One vector instruction; two-source ones were measured with their sources in one bank group."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        name = _VECTOR.get(row["instr"], row["instr"].removeprefix("V").lower())
        if name not in target.vector_mnemonics or not row["cycles_per_instr"]:
            return None
        width = 4 if "32" in row["dtypes"].split("_")[0] else 2
        first, further = target.vector_instruction(name, width)
        lost = target.value("vector.bank_conflict_cycles") if name in _TWO_SOURCES and further == 1 else 0
        predicted = max(first, (further + lost) * int(row["repeat"]))
        return Pair(row["id"], f"{name} x{row['repeat']}", float(row["cycles_per_instr"]), predicted)

    return _sample(rows_of(data, "instr_vec"), predict)


# -- board runs with known tiles -------------------------------------------------------------------------------------


def copies(data: Path) -> Sample:
    """Copies of the vendor's samples: 302 MB read once or four times, even and odd rows."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        if not row["kernel"].startswith("data_copy") or "x" not in row["tile"] or row["shape"] == "6144x512":
            return None
        lines, columns = (int(part) for part in row["shape"].split("x"))
        height, width = (int(part) for part in row["tile"].split("x"))
        path = "GM->UB" if "ub" in row["kernel"] else "GM->L1 ND2NZ"
        size = 12288 * 12288 * 2
        again = "2048" not in row["config"] and width == 1024
        pitch = columns * 2
        us = read_copies(target, size, height, width * 2, path=path, pitch=pitch).us
        if again:
            hits = float(row["l2_hit_pct"] or 0) / 100
            if not row["l2_hit_pct"]:
                return None
            warm = 4 * hits if hits > 0.01 else 0
            us = (4 - warm) * us + warm * read_copies(target, size, height, width * 2, path=path, cold=0.0).us
        return Pair(row["id"], f"{row['kernel']} {row['tile']} of {lines}x{columns}", float(row["duration_us"]), us)

    return _sample(rows_of(data, "kernel_pipes"), predict)


def additions(data: Path) -> Sample:
    """The vendor's addition samples with published tile and cores."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        if row["kernel"] not in ("add", "vector_add") or row["case"] in ("0",) or not row["tile"]:
            return None
        cores = int(row["block_dim"])
        elements = 8192 * 8192 if row["kernel"] == "add" else int(row["shape"])
        last = row["case"] in ("5", "6")
        tile = int(row["tile"]) * (1 if row["kernel"] == "add" else 2)
        double = row["case"] in ("4", "5", "6", "db_on")
        run = add_tiles(
            target, elements, tile, cores=cores, double_buffer=double, write_back=0.0 if last else 1.0,
            bank_conflict=row["case"] != "6",
        )  # fmt: skip
        return Pair(row["id"], f"{row['kernel']} {row['case']}", float(row["duration_us"]), run.us)

    return _sample(rows_of(data, "kernel_pipes"), predict)


def concats(data: Path) -> Sample:
    """Concat kernels: DMA tiles of known average size, dealt to known cores, one buffer."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        cores, tiles = int(row["block_dim"]), int(row["dma_tiles"])
        size = float(row["avg_bytes_per_dma"])
        pieces = max(1.0, size / max(float(row["max_piece_bytes"]), 1))
        load = transfer(target, "GM->UB", unit_bytes=size, unit_rows=pieces)
        store = transfer(target, "UB->GM", unit_bytes=size, unit_rows=pieces)
        empty = np.zeros((0, len(engine.WORK)))
        stream = CoreStream(4, None, np.stack([load, store]), 1, empty, -(-tiles // cores), 1, 1, 0)
        run = run_stream(stream, target, cores)
        us = task_us(run, target, cores, "graph")
        return Pair(row["id"], row["case"], float(row["p50_us"]), us)

    return _sample(rows_of(data, "concat_dma_910b"), predict)


# -- whole kernels ---------------------------------------------------------------------------------------------------


def _desc(shape: Iterable[int], dtype: DType, fmt: Format = Format.ND, c0: int = 0) -> TensorDesc:
    return TensorDesc(tuple(shape), dtype, Format.NCHW if c0 else Format.ND, fmt, c0)


def _memory(kernel: Kernel, target: Target, *, cold: bool) -> MemoryState:
    """A kernel on its own: operands cold or warm, results staying in L2 as far as it holds them.

    The second operand of a product or convolution in a network is a parameter, read once a step: always cold.
    """
    cache = L2(int(target.value("memory.l2_bytes")))
    spans, place = [], 0
    for desc in (*kernel.inputs, *kernel.outputs):
        size = 0 if desc is None else desc.payload_bytes
        spans.append((place, size))
        place += size + 512
    reads, writes = spans[: len(kernel.inputs)], spans[len(kernel.inputs) :]
    for _ in range(1 if cold else 2):
        access = cache.touch(reads, writes)
    share = tuple(1 - hit / max(size, 1) for hit, (_, size) in zip(access.hits, reads))
    if kernel.op_type in ("Conv2D", "MatMulV2") and len(share) > 1:
        share = (share[0], 1.0)
    stored = sum(size for _, size in writes)
    return MemoryState(share, access.written_back / max(stored, 1))


def matmul_kernel(
    m: int, n: int, k: int, dtype: DType, target: Target, *, batch: tuple[int, ...] = (), out: DType | None = None
) -> Kernel:
    """A product in plain layout with the compiler's own tile."""
    kind, flags = ("BatchMatMulV2", ("adj_x1", "adj_x2")) if batch else ("MatMulV2", ("transpose_x1", "transpose_x2"))
    a, b, c = _desc((*batch, m, k), dtype), _desc((*batch, k, n), dtype), _desc((*batch, m, n), out or dtype)
    kernel = Kernel(kind, Engine.AICORE, (a, b), (c,), dict.fromkeys(flags, False))
    return choose_cube_kernel(kernel, target)[0]


def _us(kernel: Kernel, target: Target, protocol: str, *, cold: bool) -> float:
    run = run_kernel(kernel, target, _memory(kernel, target, cold=cold), protocol=protocol)
    return run.cycles / target.clock_mhz


_DTYPES = {
    "float16": DType.FLOAT16, "bfloat16": DType.BF16, "float32": DType.FLOAT, "int8": DType.INT8,
    "FLOAT16": DType.FLOAT16, "DT_BF16": DType.BF16, "FLOAT": DType.FLOAT, "INT32": DType.INT32, "INT64": DType.INT64,
    "BOOL": DType.BOOL, "INT8": DType.INT8, "int32": DType.INT32,
}  # fmt: skip


def _shapes(text: str) -> list[tuple[int, ...]]:
    return [tuple(int(size) for size in part.split(",") if size) for part in text.split(";")]


def _matmul_rows(data: Path) -> Iterator[dict[str, str]]:
    """All matrix products of three files in one form: soc, dtype, batch, m, n, k, us, protocol."""
    for row in rows_of(data, "matmul_bench"):
        form = {"host_loop": "loop"}.get(row["timing"], "benchmark")
        yield {
            **row,
            "dtype": row["dtype"].split("_")[0],
            "out": row["dtype"].split("_")[-1],
            "form": form,
            "batch": "",
        }
    for row in rows_of(data, "op_profiler_910b"):
        if row["op_type"] not in ("MatMul", "MatMulV2", "MatMulV3", "BatchMatMul", "BatchMatMulV2"):
            continue
        a, b, *_ = _shapes(row["input_shapes"])
        (c,) = _shapes(row["output_shapes"])
        k = prod(a) // prod(c[:-1])
        form = "loop" if row["source"] == "bobby_microbench" else "graph"
        dtype = row["input_dtypes"].split(";")[0]
        yield {
            **row, "dtype": dtype, "out": dtype, "form": form, "batch": ",".join(map(str, c[:-2])), "m": str(c[-2]),
            "n": str(c[-1]), "k": str(k),
        }  # fmt: skip
    for row in rows_of(data, "op_bench_cases"):
        if row["op_type"] != "gemm" and "atmul" not in row["op_type"] and "matrix_mult" not in row["op_type"]:
            continue
        if row["composite"] == "1" or row["trust"] == "C" or "quant" in row["op_type"] or "group" in row["op_type"]:
            continue
        a, b, *_ = _shapes(row["input_shapes"])
        dtype = row["input_dtypes"].split(";")[0]
        transposed = "transposed_A" in row["op_type"]
        m, k = (a[-1], a[-2]) if transposed else (a[-2], a[-1])
        n = b[-1] if b[-2] == k else b[-2]
        batch = a[:-2] if len(b) > 2 else ()
        m = m if batch or len(a) == 2 else prod(a[:-1])
        yield {
            **row, "dtype": dtype, "out": dtype, "form": "benchmark", "batch": ",".join(map(str, batch)), "m": str(m),
            "n": str(n), "k": str(k),
        }  # fmt: skip


def matmuls(dtypes: tuple[str, ...]) -> Callable[[Path], Sample]:
    """Matrix products of these element types. Deliberately slow kernels of tutorials are left out."""

    def build(data: Path) -> Sample:
        def predict(row: dict[str, str], target: Target) -> Pair | None:
            dtype = _DTYPES[row["dtype"]]
            m, n, k = (int(row[name]) for name in "mnk")
            batch = tuple(int(size) for size in row["batch"].split(",") if size)
            out = {"float32": DType.FLOAT}.get(row["out"], DType.FLOAT16 if dtype is DType.INT8 else dtype)
            kernel = matmul_kernel(m, n, k, dtype, target, batch=batch, out=out)
            us = _us(kernel, target, row["form"], cold=row["form"] == "benchmark")
            return Pair(row["id"], f"{row['soc']} {batch}{m}x{n}x{k} {row['dtype']}", float(row["duration_us"]), us)

        rows = [row for row in _matmul_rows(data) if row["dtype"] in dtypes and row.get("trust") != "C"]
        return _sample([row for row in rows if "catlass_basic" not in row.get("impl", "")], predict)

    return build


def convolutions(data: Path) -> Sample:
    """Forward convolutions whose attributes are known."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        first, second = ("input_shapes", None) if "input_shapes" in row else ("input_nc1hwc0", "weight_fracz")
        parts = _shapes(row[first])
        x = parts[0]
        weight = _shapes(row[second])[0] if second else parts[1]
        dtype = DType.FLOAT if row.get("input_dtypes", "").startswith("FLOAT;") else DType.FLOAT16
        n, c1, h, w, c0 = x
        oc, taps = weight[1] * weight[2], weight[0] // c1
        side = round(taps**0.5)
        out = DType.FLOAT if "out_float32" in row.get("dtype", "") else dtype
        c = c1 * c0
        y = _desc((n, oc, h, w), out, Format.NC1HWC0, target.c0(out))
        attrs = {
            "strides": (1,) * 4, "pads": (side // 2,) * 4, "dilations": (1,) * 4, "groups": 1, "data_format": "NCHW",
        }  # fmt: skip
        inputs = (
            _desc((n, c, h, w), dtype, Format.NC1HWC0, c0),
            TensorDesc((oc, c, side, side), dtype, Format.NCHW, Format.FRACTAL_Z, c0),
            None,
        )
        kernel = choose_cube_kernel(Kernel("Conv2D", Engine.AICORE, inputs, (y,), attrs), target)[0]
        form = "benchmark" if second else "graph"
        us = _us(kernel, target, form, cold=form == "benchmark")
        return Pair(row["id"], f"conv {x} {oc} {side}x{side}", float(row["duration_us"]), us)

    profiled = [row for row in rows_of(data, "op_profiler_910b") if row["op_type"] == "Conv2D"]
    return _sample([*rows_of(data, "conv_bench"), *profiled], predict)


# -- vector operators ------------------------------------------------------------------------------------------------

_ALIASES = {
    "Log": "Log", "ReduceSum": "ReduceSumD", "BroadcastTo": "BroadcastToD", "mish": "Mish", "sigmoid": "Sigmoid",
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
    kernel = choose_vector_kernel(Kernel(name, Engine.VECTOR, tuple(inputs), tuple(outputs), attrs), target)
    return replace(kernel, block_dim=block_dim) if block_dim else kernel


def _stored(shape: tuple[int, ...], dtype: DType, fmt: str, target: Target) -> TensorDesc:
    """A descriptor from a storage shape as a profiler prints it (``NC1HWC0:1`` names a sub-format)."""
    fmt = fmt.partition(":")[0]
    if fmt == "NC1HWC0":
        n, c1, h, w, c0 = shape
        return TensorDesc((n, c1 * c0, h, w), dtype, Format.NCHW, Format.NC1HWC0, c0)
    if fmt == "FRACTAL_Z":
        depth, n1, rows, c0 = shape
        return TensorDesc((n1 * rows, depth * c0, 1, 1), dtype, Format.NCHW, Format.FRACTAL_Z, c0)
    if fmt == "FRACTAL_NZ":
        n1, m1, rows, c0 = shape[-4:]
        return TensorDesc((*shape[:-4], m1 * rows, n1 * c0), dtype, Format.ND, Format.FRACTAL_NZ, c0)
    tag = Format.NCHW if len(shape) == 4 else Format.ND
    return TensorDesc(shape, dtype, tag, tag)


def _profiled_vectors(keep: Callable[[dict[str, str]], bool], form: str, *, cold: bool) -> Callable[[Path], Sample]:
    def build(data: Path) -> Sample:
        def predict(row: dict[str, str], target: Target) -> Pair | None:
            types = row["input_dtypes"].split(";"), row["output_dtypes"].split(";")
            if any(name not in _DTYPES for part in types for name in part if name) or not row["output_shapes"]:
                return None
            formats = row["input_formats"].split(";"), row["output_formats"].split(";")
            shapes = _shapes(row["input_shapes"]), _shapes(row["output_shapes"])
            sides = [
                [_stored(shape, _DTYPES[dtype], fmt, target) for shape, dtype, fmt in zip(*parts)]
                for parts in zip(shapes, types, formats)
            ]
            count = 1 if row["op_type"] in ("ReduceSum", "BroadcastTo", "Transpose") else len(sides[0])
            cores = int(float(row["block_dim"])) if row["block_dim"] else None
            kernel = vector_kernel(row["op_type"], sides[0][:count], sides[1], target, cores)
            if kernel is None:
                return None
            # Flat megabytes are parameters, gradients and moments of an optimiser: touched once a step.
            flat = len(shapes[0][0]) == 1 and sides[0][0].payload_bytes > 1 << 20
            what = f"{row['op_type']} {row['input_shapes']}"
            return Pair(row["id"], what, float(row["duration_us"]), _us(kernel, target, form, cold=cold or flat))

        vector = [row for row in rows_of(data, "op_profiler_910b") if row["accelerator"] != "AI_CORE"]
        return _sample([row for row in vector if keep(row) and row["impl"] in ("vendor_lib", "torch", "")], predict)

    return build


def bench_vectors(data: Path) -> Sample:
    """Vector operators of benchmark suites, one kernel each, operands cold."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        if row["op_type"] not in _ALIASES or "[" in row["input_shapes"]:
            return None
        dtype = _DTYPES.get(row["input_dtypes"].split(";")[0])
        if dtype is None:
            return None
        inputs = [TensorDesc(shape, dtype) for shape in _shapes(row["input_shapes"])]
        kernel = vector_kernel(row["op_type"], inputs, [inputs[0]], target, None)
        if kernel is None:
            return None
        what = f"{row['op_type']} {row['input_shapes']} {dtype}"
        return Pair(row["id"], what, float(row["duration_us"]), _us(kernel, target, "benchmark", cold=True))

    rows = [row for row in rows_of(data, "op_bench_cases") if row["composite"] != "1" and row["trust"] != "C"]
    return _sample(rows, predict)


def networks(data: Path) -> Sample:
    """Whole networks on 310P3, batch 1, 8 and 32 (published as pictures per second)."""
    from timing_networks import NETWORKS, network_us

    names = {"AlexNet": "AlexNet", "VGG19": "VGG19", "Resnet18_for_PyTorch": "ResNet18", "ResNet152": "ResNet152"}
    names["Wide_ResNet101_2"] = "WideResNet101_2"

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        name, batch = names[row["model"]], int(row["batch"])
        if name not in NETWORKS or batch not in (1, 8, 32):
            return None
        us = batch / float(row["value"]) * 1e6
        return Pair(row["id"], f"{name} batch {batch}", us, network_us(name, batch, target))

    rows = [row for row in rows_of(data, "model_infer") if row["model"] in names and row["soc"] == "310P3"]
    return _sample([row for row in rows if row["suspect"] == "0" and row["precision"] == "fp16_default"], predict)


def _is_loop(row: dict[str, str]) -> bool:
    return row["source"] == "bobby_microbench"


SETS: dict[str, Callable[[Path], Sample]] = {
    "instruction_moves": moves,
    "instruction_mmad": products,
    "instruction_vector": vector_instructions,
    "board_copies": copies,
    "board_additions": additions,
    "concat_910b": concats,
    "matmul_16bit_910b": matmuls(("float16", "bfloat16", "FLOAT16", "DT_BF16")),
    "matmul_fp32_910b": matmuls(("float32", "FLOAT")),
    "matmul_int8_910b": matmuls(("int8", "INT8")),
    "conv_910b": convolutions,
    "vector_traces_910b": _profiled_vectors(lambda row: not _is_loop(row), "graph", cold=False),
    "vector_loops_910b": _profiled_vectors(_is_loop, "loop", cold=False),
    "vector_bench_910b": bench_vectors,
    "networks_310p3": networks,
}
SLOW = ("networks_310p3",)
