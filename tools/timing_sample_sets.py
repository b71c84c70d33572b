"""Sample kernels, scans and copies of 910B boards, and fused attention: kernels that are no operator of a library.

What a sample's row does not state is told by the other rows of its page, never by its own time; such rows are marked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, log
from pathlib import Path

from metadef.cost.signature import Deal, Rows, Signature
from metadef.cost.stages import MIXED, Mixed, Stage, vector_stage
from metadef.dtype import DType
from metadef.format import Format, TensorDesc, ceil_div
from metadef.kernel import TIMING_ONLY, Engine, Kernel
from metadef.select.attention import Attention, attention_kernel
from metadef.select.cube import choose_cube_kernel
from metadef.target import Target, replaced
from npusim.timing.additions import Places, repeat_cycles
from npusim.timing.micro import read_copies
from timing_chain import Chain, product
from timing_data import DTYPES, Microseconds, Pair, Sample, chip, collect, family_of, rows_of
from timing_thread_sets import Row, is_told, numbered, thread_us

_TIMER_MHZ = 50
"""Rate of the counter that the bank conflict sample prints (1000 adds of 64 repeats take 2390 ticks)."""

TOLD = " (its work is told by other rows)"
"""Ends what a pair says where its row does not state how much work it is."""

# -- sample kernels of the vendor --------------------------------------------------------------------------------------


def sample_kernels(data: Path, family: str) -> Sample:
    """Vendor samples that are not plain copies or additions with a published tile, on the chips of a family."""
    rows = numbered(rows_of(data, "kernel_pipes"))

    def predict(row: Row, target: Target) -> Pair | None:
        us = sample_us(row, target, others_of(row, rows))
        told = row["kernel"] == "nd2nz" or is_told(row)
        what = f"{row['kernel']} {row['shape']} {row['case']}" + (TOLD if told else "")
        return None if us is None else Pair(row["id"], what, float(row["duration_us"] or row["cycles"]), us)

    kept = [row for row in rows if _is_sample(row) and family_of(row["soc"]) == family]
    return collect(kept, predict)


def others_of(row: Row, rows: Sequence[Row]) -> list[Row]:
    """The other rows of a row's page: those of its kernel."""
    return [other for other in rows if other["kernel"] == row["kernel"] and other["id"] != row["id"]]


def sample_us(row: Row, target: Target, others: Sequence[Row]) -> float | None:
    """Microseconds (or ticks) of a sample kernel; ``others`` are the other rows of its page. None if too little is
    known."""
    kernel = row["kernel"]
    if reads_together(row):
        return _same_lines(row, target)
    if kernel == "nd2nz":
        return _to_fractals(row, target, others)
    build = _STATED.get(kernel) or (_products if "matmul" in kernel else None)
    return thread_us(row, target, others) if build is None else build(row, target)


def reads_together(row: Row) -> bool:
    """Whether all cores of a copy read one small matrix."""
    return row["kernel"] == "data_copy_gm_to_ub" and row["case"] in ("7", "8")


def _is_sample(row: Row) -> bool:
    """Rows that the sets of copies and additions leave."""
    if row["kernel"] == "add":
        return row["case"] == "0"
    return reads_together(row) or not row["kernel"].startswith(("vector_add", "data_copy", "l2_cache_mode"))


def _scalar_add(row: Row, target: Target) -> float:
    """An addition by the scalar unit, one element after the other on one core."""
    elements = 8192 * 8192
    return elements * target.value("alignment.scalar_cycles_per_element") / target.clock_mhz


def _bank_conflict(row: Row, target: Target) -> float:
    """Ticks of 1000 additions of 64 repeats each, operands at published places of UB."""
    stride = dict(part.split("=") for part in row["config"].split(";") if "=" in part)
    first, second, result = (int(row[name], 16) for name in _PLACES)
    places = Places(first, second, result, int(stride.get("src0BlkStride", 1)), int(stride.get("src0RepStride", 8)))
    cycles = repeat_cycles(target, places, 64) + target.value("vector.dependent_call_cycles")
    return 1000 * cycles * _TIMER_MHZ / target.clock_mhz


_PLACES = ("src0_addr", "src1_addr", "dst_addr")


def _same_lines(row: Row, target: Target) -> float:
    """All cores read one matrix, in step (case 7) or each beginning elsewhere."""
    lines, columns = (int(part) for part in row["shape"].split("x"))
    height, width = (int(part) for part in row["tile"].split("x"))
    cores = int(row["block_dim"])
    readers = cores if row["case"] == "7" else 1
    size = lines * columns * 2 * cores
    return read_copies(target, size, height, width * 2, cold=0.0, pitch=columns * 2, readers=readers).us


def _top_k(row: Row, target: Target) -> float:
    rows, columns = (int(part) for part in row["shape"].split("_")[0].split("x"))
    chain = Chain(target)
    x = chain.value((rows, columns), DType.FLOAT16)
    chain.vector("TopKV2", [x], (rows, columns), block_dim=int(row["block_dim"]))
    return chain.us("benchmark")


_FRACTAL_WIDTHS = tuple(1 << bits for bits in range(8, 17))


def _to_fractals(row: Row, target: Target, others: Sequence[Row]) -> float | None:
    """Halves turned into fractals. As many rows as the tiles of one board's cores have, columns by a power of two: the
    matrix that meets the time of the other boards best."""
    alike = [other for other in others if other["case"] == row["case"]]
    boards = [(other, board) for other in alike if (board := chip(other["soc"], other["source"])) is not None]
    heights = sorted({int(item["tile"].split("x")[0]) * int(item["block_dim"]) for item in (row, *alike)})
    shapes = [(height, width) for height in heights for width in _FRACTAL_WIDTHS]

    def off(shape: tuple[int, int]) -> float:
        found = [(_fractals_us(other, board, shape), float(other["duration_us"])) for other, board in boards]
        return sum(abs(log(us / measured)) for us, measured in found)

    return _fractals_us(row, target, min(shapes, key=off)) if boards else None


def _fractals_us(row: Row, target: Target, shape: tuple[int, int]) -> Microseconds:
    chain = Chain(target)
    x = TensorDesc(shape, DType.FLOAT16)
    blocked = x.stored_as(Format.FRACTAL_NZ, target.c0(x.dtype))
    chain.vector("TransData", [chain.hold(x)], outputs=[blocked], block_dim=int(row["block_dim"]))
    return chain.us("benchmark", full=True)


def _activation(row: Row, target: Target) -> float:
    """An activation of an fp32 matrix; ``case`` 0 of a chip with registers calls instruction by instruction."""
    if row["case"] == "0":
        target = replaced(target, {"vector.registers": False})
    height, width = (int(part) for part in row["shape"].split("x")[:2])
    chain = Chain(target)
    x = chain.value((height, width), DType.FLOAT)
    if row["kernel"] == "relu":
        chain.vector("Relu", [x], dtype=DTYPES[row["dtype"]])
    else:
        chain.vector("Gelu", [x], block_dim=int(row["block_dim"] or 0) or None)
    return chain.us("benchmark", full=True)


def _products(row: Row, target: Target) -> float | None:
    """Products, on their own, with an activation behind, or in groups."""
    if "gelu_only" in row["case"]:
        return _activation({**row, "kernel": "gelu"}, target)
    groups, _, sides = row["shape"].rpartition(" ")
    batch = int(groups.split()[0]) if groups else 1
    m, n, k = (int(part) for part in sides.split("x"))
    if batch > 1:
        n, k = k, n
    if row["dtype"] == "fp4":
        # Two values of four bits are a byte, and multiply in the time of one.
        k //= 2
    dtype = DType.INT8 if row["dtype"] == "fp4" else DTYPES[row["dtype"]]
    finish = ("Gelu",) if "gelu" in row["kernel"] else ("Dequant", "Gelu") if "quant" in row["kernel"] else ()
    finish = ("Relu",) if "relu" in row["kernel"] else finish
    if row["mix_block_dim"]:
        vector_cores = target.cube_cores * int(row["mix_block_dim"]) // int(row["block_dim"])
        target = replaced(target, {"cores.vector": vector_cores or target.vector_cores})
    chain = Chain(target)
    lead = (batch,) if batch > 1 else ()
    a, b = chain.value((*lead, m, k), dtype), chain.value((*lead, k, n), dtype)
    cores = int(row["block_dim"] or target.cube_cores)
    product(
        chain, a, b, m, n, k, batch=batch, finish=finish, out=DType.FLOAT16,
        block_dim=cores if cores < target.cube_cores else None,
    )  # fmt: skip
    return chain.us("benchmark")


_STATED: dict[str, Callable[[Row, Target], float | None]] = {
    "add": _scalar_add, "bank_conflict_ub_add": _bank_conflict, "topk": _top_k, "gelu": _activation,
    "gelu_eltwise": _activation, "relu": _activation,
}  # fmt: skip

# -- copies and scans --------------------------------------------------------------------------------------------------


def copies_and_scans(data: Path) -> Sample:
    """Copies, casts and scans of one long vector, timed from the host."""

    def predict(row: Row, target: Target) -> Pair | None:
        us = _vector_run(row["kernel"], int(row["elements"]), DTYPES[_NAMES.get(row["dtype"], row["dtype"])], target)
        if us is None or not float(row["duration_us"]):
            return None
        us = us.plus(target.value("launch.host_event_us"))
        return Pair(row["id"], f"{row['kernel']} {row['elements']}", float(row["duration_us"]), us)

    return collect(rows_of(data, "mem_copy_bw"), predict)


_NAMES = {"fp16": "float16", "fp32": "float32"}


def _vector_run(kind: str, elements: int, dtype: DType, target: Target) -> Microseconds | None:
    chain = Chain(target)
    if ("scan" in kind and kind != "scan_fp16") or kind.startswith("mcgather"):
        side = next((int(part) for part in kind.split("_") if part.isdigit()), 128)
        return _scan(chain, elements, side, dtype, again="no_l2" in kind)
    x = chain.value((elements,), dtype)
    if kind == "scan_fp16":
        chain.vector("Cumsum", [chain.value((1, elements), dtype)])
    elif kind == "diff":
        chain.vector("Sub", [x, x])
    elif kind.startswith("cast"):
        chain.vector("Cast", [x], dtype=DType.FLOAT)
    elif kind.startswith("copy"):
        chain.vector("TensorMove", [x])
    elif kind == "gen_lower":
        ones = chain.vector("OnesLike", [], (elements, elements), dtype)
        chain.vector("Tril", [ones])
    else:
        return None
    return chain.us("benchmark")


def _scan(chain: Chain, elements: int, side: int, dtype: DType, *, again: bool) -> Microseconds:
    """Prefix sums by the cube: a tile of side x side is multiplied by a triangle of ones, the vector cores add up its
    rows and what came before, one row after the other. A second pass adds the sums of the blocks before."""
    target = chain.target
    tiles = ceil_div(elements, side * side)
    cores = min(target.cube_cores, tiles)
    half = DType.FLOAT16
    block, triangle = TensorDesc((tiles, side, side), half), TensorDesc((side, side), half)
    flags = {"adj_x1": False, "adj_x2": False}
    sums = TensorDesc((tiles, side, side), DType.FLOAT)
    multiply = Kernel("BatchMatMulV2", Engine.AICORE, (block, TensorDesc((tiles, side, side), half)), (sums,), flags)
    multiply = choose_cube_kernel(
        multiply, target, block_dim=cores, only=lambda table: table["split_batch"] == table["split_batch"].max()
    )[0]
    lines = TensorDesc((tiles * side, side), DType.FLOAT)
    add_up = Signature((), ("add", "cast"), 3, Rows.LAST, Deal.ROWS)
    result = TensorDesc((tiles * side, side), half)
    carry = vector_stage("ScanRows", (lines,), result, add_up, target.vector_share * cores, target)
    rounds = ceil_div(tiles, cores)
    stages = (
        Stage(multiply, (0, None), (1.0, triangle.payload_bytes / max(block.payload_bytes, 1))),
        Stage(carry, (None,), (), True),
    )
    x = chain.value((elements,), dtype)
    kernel = Kernel(
        "Scan", Engine.AICORE, (x.desc,), (result,), {MIXED: Mixed(stages, rounds, rounds)}, algorithm=TIMING_ONLY,
        block_dim=cores,
    )  # fmt: skip
    chain.cube(kernel, [x], chosen=True)
    chain.vector("Adds", [chain.hold(x.desc) if again else x])
    return chain.us("benchmark")


# -- attention ---------------------------------------------------------------------------------------------------------


def attention(data: Path) -> Sample:
    """Fused attention of one head, with device times."""

    def predict(row: Row, target: Target) -> Pair:
        queries, keys, width = int(row["s0"]), int(row["s1"]), int(row["head_dim"])
        kept = ceil(keys / 2) if row["causal"] == "1" else 0
        size = Attention(1, 1, 1, queries, keys, width, width, DTYPES[row["dtype"]], kept)
        chain = Chain(target)
        kernel = attention_kernel(size, target)
        chain.cube(kernel, [chain.hold(desc) for desc in kernel.inputs if desc is not None], chosen=True)
        us = chain.us("benchmark")
        return Pair(row["id"], f"{row['impl']} {queries}x{keys}x{width}", float(row["duration_us"]), us)

    return collect([row for row in rows_of(data, "attention_bench") if row["timing"] == "device"], predict)
