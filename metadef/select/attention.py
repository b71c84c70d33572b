"""Attention as one mixed kernel: scores and sums by the cube, softmax by the vector cores, everything between in L2.

A task is a block of query rows of one key/value head (heads that share keys and values are rows of one problem); it
walks over blocks of keys. Kernels of this kind are timed and cannot run.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

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


def attention_kernel(
    size: Attention, target: Target, op_type: str = "FlashAttentionScore", *, gradient: bool = False
) -> Kernel:
    """The kernel of one attention; inputs are queries, keys and values, each as one block.

    A ``gradient`` computes the scores again, multiplies the result's gradient by the values, and then both by queries,
    keys and that gradient; its vector cores do the softmax twice over.

    Raises:
        TargetError: no tile fits.
    """
    deal = _Deal.of(size, target)
    first, last = 1 / deal.blocks, size.problems / deal.tasks
    scores = Stage(deal.product(size.key_width, deal.block, True, target), (0, 1), (first, last))
    softmax = Stage(deal.softmax(target), (None,))
    sums = Stage(deal.product(deal.block, size.value_width, False, target), (None, 2), (1.0, last))
    rescale = Stage(deal.rescale(size.value_width, target), (None,), (), True)
    stages: tuple[Stage, ...] = (scores, softmax, sums, rescale)
    if gradient:
        by_values = Stage(deal.product(size.value_width, deal.block, True, target), (0, 2), (first, last))
        by_scores = Stage(deal.product(deal.block, size.key_width, False, target), (None, 1), (1.0, last))
        stages = (scores, by_values, softmax, softmax, sums, by_scores, by_scores, rescale)
    keys, half = size.keys_kept or size.keys, size.dtype
    inputs = (
        TensorDesc((size.batch * size.heads * size.queries, size.key_width), half),
        TensorDesc((size.problems * keys, size.key_width), half),
        TensorDesc((size.problems * keys, size.value_width), half),
    )
    result = TensorDesc((size.batch * size.heads * size.queries, size.value_width), half)
    attrs = {MIXED: Mixed(stages, deal.share * deal.blocks, deal.share)}
    return Kernel(op_type, Engine.AICORE, inputs, (result,), attrs, algorithm=TIMING_ONLY, block_dim=deal.pieces)


@dataclass(frozen=True)
class _Deal:
    """How an attention is dealt: ``tasks`` of ``rows`` queries and ``blocks`` of ``block`` keys to ``pieces`` cores."""

    rows: int
    block: int
    blocks: int
    tasks: int
    pieces: int
    dtype: DType

    @classmethod
    def of(cls, size: Attention, target: Target) -> _Deal:
        rows = min(size.rows, QUERY_ROWS)
        keys = size.keys_kept or size.keys
        tasks = size.problems * ceil_div(size.rows, rows)
        block = min(keys, KEY_COLUMNS)
        blocks, parts = ceil_div(keys, block), 1
        if tasks < target.cube_cores and size.rows < QUERY_ROWS:
            # Few tasks of few rows (decoding) share the keys of one task.
            parts = max(min(blocks, target.cube_cores // tasks), 1)
        tasks, blocks = tasks * parts, ceil_div(blocks, parts)
        return cls(rows, block, blocks, tasks, min(tasks, target.cube_cores), size.dtype)

    @property
    def share(self) -> int:
        """Tasks of the fullest core."""
        return ceil_div(self.tasks, self.pieces)

    def product(self, depth: int, width: int, turned: bool, target: Target) -> Kernel:
        """One product of all rounds: the block's rows by ``depth`` by ``width``."""
        times, height = self.tasks * self.blocks, round_up(self.rows, 16)
        first = TensorDesc((times, height, depth), self.dtype)
        second = TensorDesc((times, width, depth) if turned else (times, depth, width), self.dtype)
        result = TensorDesc((times, height, width), DType.FLOAT)
        flags = {"adj_x1": False, "adj_x2": turned}
        kernel = Kernel("BatchMatMulV2", Engine.AICORE, (first, second), (result,), flags)
        return choose_cube_kernel(kernel, target, block_dim=self.pieces, only=_most_batches)[0]

    def softmax(self, target: Target) -> Kernel:
        return self._vector("AttentionSoftmax", self.block, SOFTMAX, target)

    def rescale(self, width: int, target: Target) -> Kernel:
        return self._vector("AttentionRescale", width, RESCALE, target)

    def _vector(self, name: str, width: int, signature: Signature, target: Target) -> Kernel:
        """A stage over the rows of all rounds, as many on every core as on the fullest."""
        lines = TensorDesc((self.pieces * self.share * self.blocks * self.rows, width), DType.FLOAT)
        result = TensorDesc(lines.shape, self.dtype)
        return vector_stage(name, (lines,), result, signature, target.vector_share * self.pieces, target)


def _most_batches(table: dict[str, np.ndarray]) -> np.ndarray:
    """Candidates that deal whole tasks to cores."""
    split = table["split_batch"]
    return np.asarray(split == split.max())
