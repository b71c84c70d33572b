"""Published measurements as sets of (measured, predicted) pairs: one function per set, no constant of its own.

Kernels get their tiles from the compiler's own search, so a vendor's tiling counts as error here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

import timing_training_sets as training
from metadef.cost import engine
from metadef.cost.run import run_stream, task_us
from metadef.cost.streams import CoreStream, transfer
from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.kernel import CubeTile, Engine, Kernel
from metadef.select.cube import choose_cube_kernel
from metadef.target import Target
from npusim.timing.additions import add_tiles
from npusim.timing.micro import read_copies
from timing_bench_sets import bench_cases, is_product
from timing_data import DTYPES, Pair, Sample, collect, kernel_us, make_desc, parse_shapes, rows_of
from timing_instruction_sets import moves, products, vector_instructions
from timing_profile_sets import is_product as is_profiled_product
from timing_profile_sets import profiled, protocol
from timing_sample_sets import attention, copies_and_scans, reads_together, sample_kernels
from timing_split import ruled
from timing_vector_sets import is_expressible, profiled_vectors

# -- board runs with known tiles -------------------------------------------------------------------------------------


def _samples(data: Path, *kernels: str) -> list[dict[str, str]]:
    """Rows of the vendor's sample kernels whose names begin so."""
    return [row for row in rows_of(data, "kernel_pipes") if row["kernel"].startswith(kernels)]


def copies(data: Path) -> Sample:
    """Copies of the vendor's samples: 302 MB read once or four times, even and odd rows."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        if "x" not in row["tile"] or reads_together(row):
            return None
        lines, columns = (int(part) for part in row["shape"].split("x"))
        height, width = (int(part) for part in row["tile"].split("x"))
        path = "GM->L1 ND2NZ" if "l1" in row["kernel"] else "GM->UB"
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

    return collect(_samples(data, "data_copy", "l2_cache_mode"), predict)


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

    return collect(_samples(data, "add", "vector_add"), predict)


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
        us = task_us(run, target, cores, "trace") + target.value("launch.list_us")
        return Pair(row["id"], row["case"], float(row["p50_us"]), us)

    return collect(rows_of(data, "concat_dma_910b"), predict)


# -- whole kernels ---------------------------------------------------------------------------------------------------


def matmul_kernel(
    m: int, n: int, k: int, dtype: DType, target: Target, *, batch: tuple[int, ...] = (), out: DType | None = None,
    turned: tuple[bool, bool] = (False, False), block_dim: int | None = None,
) -> Kernel:  # fmt: skip
    """A product in plain layout with the compiler's own tile; ``turned`` operands are stored transposed."""
    kind, flags = ("BatchMatMulV2", ("adj_x1", "adj_x2")) if batch else ("MatMulV2", ("transpose_x1", "transpose_x2"))
    a, b, c = (
        make_desc((*batch, k, m) if turned[0] else (*batch, m, k), dtype),
        make_desc((*batch, n, k) if turned[1] else (*batch, k, n), dtype),
        make_desc((*batch, m, n), out or dtype),
    )
    kernel = Kernel(kind, Engine.AICORE, (a, b), (c,), dict(zip(flags, turned)))
    return choose_cube_kernel(kernel, target, block_dim=block_dim)[0]


def split_depth(m: int, n: int, k: int, dtype: DType, out: DType, target: Target) -> Kernel:
    """A product of few 128 x 256 tiles whose depth is dealt to all cores, which add their sums up in memory."""
    tiles = -(-m // 128) * -(-n // 256)
    pieces = max(target.cube_cores // tiles, 1)
    depth = -(-k // pieces // 32) * 32
    part = matmul_kernel(m, n, depth, dtype, target, out=out, block_dim=tiles)
    whole = matmul_kernel(m, n, k, dtype, target, out=out, block_dim=tiles)
    assert isinstance(part.tile, CubeTile)
    return replace(whole, tile=replace(part.tile, split_k=pieces), block_dim=tiles * pieces)


def _example_cores(row: dict[str, str]) -> str:
    """Cores of the quantised product examples without a split of K: one for each of their 128 x 256 tiles."""
    if row["impl"] != "catlass_quant":
        return ""
    return str(-(-int(row["m"]) // 128) * -(-int(row["n"]) // 256))


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
            "cores": _example_cores(row),
        }
    for row in rows_of(data, "op_profiler_910b"):
        if not is_profiled_product(row):
            continue
        a, b, *_ = parse_shapes(row["input_shapes"])
        (c,) = parse_shapes(row["output_shapes"])
        k = prod(a) // prod(c[:-1])
        form = "loop" if row["source"] == "bobby_microbench" else "trace"
        dtype = row["input_dtypes"].split(";")[0]
        turned = f"{int(a[-1] != k)}{int(b[-1] == k and b[-2] == c[-1])}"
        yield {
            **row, "dtype": dtype, "out": dtype, "form": form, "batch": ",".join(map(str, c[:-2])), "m": str(c[-2]),
            "n": str(c[-1]), "k": str(k), "turned": turned, "cores": row["block_dim"],
        }  # fmt: skip
    for row in rows_of(data, "op_bench_cases"):
        if row["trust"] == "C" or not is_product(row):
            continue
        a, b, *_ = parse_shapes(row["input_shapes"])
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
            dtype = DTYPES[row["dtype"]]
            m, n, k = (int(row[name]) for name in "mnk")
            batch = tuple(int(size) for size in row["batch"].split(",") if size)
            out = {"float32": DType.FLOAT, "tf32": DType.FLOAT}.get(
                row["out"], DType.FLOAT16 if dtype is DType.INT8 else dtype
            )
            turned = tuple(flag == "1" for flag in row.get("turned", "00"))
            cores = int(float(row["cores"])) if row.get("cores") else None
            kernel = matmul_kernel(
                m, n, k, dtype, target, batch=batch, out=out, turned=(turned[0], turned[1]), block_dim=cores
            )
            if row.get("impl", "").endswith("multi_core_splitk"):
                kernel = split_depth(m, n, k, dtype, out, target)
            us = kernel_us(kernel, target, row["form"], cold=row["form"] == "benchmark")
            return Pair(row["id"], f"{row['soc']} {batch}{m}x{n}x{k} {row['dtype']}", float(row["duration_us"]), us)

        rows = [row for row in _matmul_rows(data) if row["dtype"] in dtypes and row.get("trust") != "C"]
        return collect([row for row in rows if "catlass_basic" not in row.get("impl", "")], predict)

    return build


def convolutions(data: Path) -> Sample:
    """Forward convolutions whose attributes are known."""

    def predict(row: dict[str, str], target: Target) -> Pair | None:
        first, second = ("input_shapes", None) if "input_shapes" in row else ("input_nc1hwc0", "weight_fracz")
        parts = parse_shapes(row[first])
        x = parts[0]
        weight = parse_shapes(row[second])[0] if second else parts[1]
        dtype = DType.FLOAT if row.get("input_dtypes", "").startswith("FLOAT;") else DType.FLOAT16
        n, c1, h, w, c0 = x
        oc, taps = weight[1] * weight[2], weight[0] // c1
        side = round(taps**0.5)
        out = DType.FLOAT if "out_float32" in row.get("dtype", "") else dtype
        c = c1 * c0
        y = make_desc((n, oc, h, w), out, Format.NC1HWC0, target.c0(out))
        attrs = {
            "strides": (1,) * 4, "pads": (side // 2,) * 4, "dilations": (1,) * 4, "groups": 1, "data_format": "NCHW",
        }  # fmt: skip
        inputs = (
            make_desc((n, c, h, w), dtype, Format.NC1HWC0, c0),
            TensorDesc((oc, c, side, side), dtype, Format.NCHW, Format.FRACTAL_Z, c0),
            None,
        )
        kernel = choose_cube_kernel(Kernel("Conv2D", Engine.AICORE, inputs, (y,), attrs), target)[0]
        form = "benchmark" if second else "trace"
        us = kernel_us(kernel, target, form, cold=form == "benchmark")
        return Pair(row["id"], f"conv {x} {oc} {side}x{side}", float(row["duration_us"]), us)

    profiled = [row for row in rows_of(data, "op_profiler_910b") if row["op_type"] == "Conv2D"]
    return collect([*rows_of(data, "conv_bench"), *profiled], predict)


def networks(data: Path) -> Sample:
    """Whole networks on 310P3 at every published batch."""
    from timing_networks import predict

    pairs = [row.pair for row in predict(data)]
    return Sample(pairs, len(pairs))


SETS: dict[str, Callable[[Path], Sample]] = {
    "instruction_moves": moves,
    "instruction_mmad": products,
    "instruction_vector": vector_instructions,
    "board_copies": copies,
    "board_additions": additions,
    "sample_kernels_910b": partial(sample_kernels, family="910B"),
    "sample_kernels_950": partial(sample_kernels, family="950"),
    "concat_910b": concats,
    "copies_and_scans_910b": copies_and_scans,
    "attention_910b": attention,
    "matmul_16bit_910b": matmuls(("float16", "bfloat16", "FLOAT16", "DT_BF16")),
    "matmul_fp32_910b": matmuls(("float32", "FLOAT", "tf32")),
    "matmul_int8_910b": matmuls(("int8", "INT8")),
    "matmul_8bit_950": matmuls(("mxfp8",)),
    "conv_910b": convolutions,
    "vector_traces_910b": profiled(lambda row: protocol(row) == "trace"),
    "vector_loops_910b": profiled(lambda row: protocol(row) == "loop"),
    "runtime_loops_910b": profiled(lambda row: protocol(row) == "pypto"),
    "bench_cases_910b": partial(bench_cases, family="910B"),
    "bench_cases_950": partial(bench_cases, family="950"),
    "vector_traces_910": profiled_vectors(is_expressible, "trace", file="op_trace_910_gen1"),
    "conv_910": training.convolutions,
    "conv_dx_910": training.input_gradients,
    "conv_dw_910": training.filter_gradients,
    "matmul_910": training.products,
    "vector_own_split_910": profiled_vectors(is_expressible, "trace", file="op_trace_910_gen1", adjust=ruled),
    "conv_own_split_910": partial(training.convolutions, adjust=ruled),
    "conv_dx_own_split_910": partial(training.input_gradients, adjust=ruled),
    "conv_dw_own_split_910": partial(training.filter_gradients, adjust=ruled),
    "matmul_own_split_910": partial(training.products, adjust=ruled),
    "networks_310p3": networks,
}
OWN_SPLIT = tuple(name for name in SETS if "own_split" in name)
"""Rows of other sets once more, with block_dim by the vendor's rules in place of the published one."""
SLOW = ("networks_310p3", *OWN_SPLIT)
