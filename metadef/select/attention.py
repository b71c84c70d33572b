"""Attention as one mixed kernel: scores and sums by the cube, softmax by the vector cores, everything between in L2.

A task is a block of query rows of one key/value head (heads that share keys and values are rows of one problem); it
walks over blocks of keys. Kernels of this kind are timed and cannot run.
"""

from __future__ import annotations

from dataclasses import dataclass

from metadef.cost.signature import Deal, Rows, Signature
from metadef.cost.stages import MIXED, Mixed, Stage, vector_stage
from metadef.dtype import DType
from metadef.format import TensorDesc, ceil_div, round_up
from metadef.kernel import TIMING_ONLY, Engine, Kernel
from metadef.select.cube import choose_cube_kernel
from metadef.target import Target

QUERY_ROWS, KEY_COLUMNS = 128, 512
"""Rows of a task and keys of a block (fused attention kernels: 128 rows; 512 fp32 columns fill half of UB)."""
SOFTMAX = Signature((), ("muls", "max", "sub", "exp", "add"), 3, Rows.LAST, Deal.ROWS, fp32=True)
"""Running softmax of a block of scores: scale, row maximum, shift, exponent, row sum, result to 16 bits."""
RESCALE = Signature((), ("mul", "add", "cast"), 1, Rows.LAST, Deal.ROWS, fp32=True)
"""The sum so far times the change of the maximum, plus this block's."""


@dataclass(frozen=True)
class Attention:
    """Sizes: ``batch`` samples, ``heads`` of queries and ``kv_heads`` of keys, lengths, and the widths of a key and of
    a value (elements). ``keys_kept`` is how many keys of a row count where a mask or an index leaves some out."""

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    key_width: int
    value_width: int
    dtype: DType
    keys_kept: int = 0

    @property
    def problems(self) -> int:
        return self.batch * self.kv_heads

    @property
    def rows(self) -> int:
        return self.queries * self.heads // self.kv_heads


def attention_kernel(size: Attention, target: Target, op_type: str = "FlashAttentionScore") -> Kernel:
    """The kernel of one attention; inputs are queries, keys and values, each as one block.

    Raises:
        TargetError: no tile fits.
    """
    rows = min(size.rows, QUERY_ROWS)
    keys = size.keys_kept or size.keys
    tasks = size.problems * ceil_div(size.rows, rows)
    block = min(keys, KEY_COLUMNS)
    blocks = ceil_div(keys, block)
    # Few tasks of few rows (decoding) share the keys of one task.
    parts = min(blocks, target.cube_cores // tasks) if tasks < target.cube_cores and size.rows < QUERY_ROWS else 1
    tasks, blocks = tasks * max(parts, 1), ceil_div(blocks, max(parts, 1))
    pieces = min(tasks, target.cube_cores)
    share = ceil_div(tasks, pieces)
    height, part = round_up(rows, 16), size.problems / tasks
    half, full = size.dtype, DType.FLOAT
    count, cores = pieces * share * blocks, 2 * pieces

    def batched(depth: int, width: int, turned: bool, out: DType, times: int) -> Kernel:
        first = TensorDesc((times, height, depth), half)
        second = TensorDesc((times, width, depth) if turned else (times, depth, width), half)
        flags = {"adj_x1": False, "adj_x2": turned}
        kernel = Kernel(
            "BatchMatMulV2", Engine.AICORE, (first, second), (TensorDesc((times, height, width), out),), flags
        )
        return choose_cube_kernel(
            kernel, target, block_dim=pieces, only=lambda table: table["split_batch"] == table["split_batch"].max()
        )[0]

    scores = TensorDesc((count * rows, block), full)
    sums = TensorDesc((count * rows, size.value_width), full)
    stages = (
        Stage(batched(size.key_width, block, True, full, tasks * blocks), (0, 1), (1 / blocks, part)),
        Stage(
            vector_stage("AttentionSoftmax", (scores,), TensorDesc(scores.shape, half), SOFTMAX, cores, target), (None,)
        ),
        Stage(batched(block, size.value_width, False, full, tasks * blocks), (None, 2), (1.0, part)),
        Stage(
            vector_stage("AttentionRescale", (sums,), TensorDesc(sums.shape, half), RESCALE, cores, target),
            (None,),
            (),
            True,
        ),
    )
    inputs = (
        TensorDesc((size.batch * size.heads * size.queries, size.key_width), half),
        TensorDesc((size.problems * keys, size.key_width), half),
        TensorDesc((size.problems * keys, size.value_width), half),
    )
    result = TensorDesc((size.batch * size.heads * size.queries, size.value_width), half)
    attrs = {MIXED: Mixed(stages, share * blocks, share)}
    return Kernel(op_type, Engine.AICORE, inputs, (result,), attrs, algorithm=TIMING_ONLY, block_dim=pieces)
