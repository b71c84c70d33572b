"""How the first generation's libraries share kernels out over cores (block_dim), as data per kernel class.

Read off published launches of training steps: one rule a type among a few is exact in 86 % of vector tasks; products
hit 98 %, convolutions 76 to 86 % (graphs that a tuning tool has been over follow no rule). Our own selection does not
use them: they say what the vendor's kernels would do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil, prod

Shape = Sequence[int]
FILL_BYTES = 43690
"""Bytes that a core clears before another one is taken."""
_WAVE_CORES = 32
"""Cores that these libraries were tuned for; on a part with 30 of them such a split takes two waves."""


def _by_elements(count: int) -> Callable[[Shape, int], int]:
    return lambda shape, cores: min(cores, ceil(prod(shape) / count))


def _even_units(shape: Shape, cores: int) -> int:
    """Whole units of the first axis, as many to every core."""
    return ceil(shape[0] / max(ceil(shape[0] / cores), 1))


def _channels(shape: Shape, cores: int) -> int:
    """Channel blocks where there are fewer samples than cores."""
    return min(cores, shape[1]) if len(shape) > 1 and shape[0] < cores else cores


RULES: dict[str, Callable[[Shape, int], int]] = {
    "256 elements": _by_elements(256),
    "512 elements": _by_elements(512),
    "1024 elements": _by_elements(1024),
    "samples": lambda shape, cores: min(cores, shape[0]),
    "even samples": _even_units,
    "waves of samples": lambda shape, cores: shape[0],
    "channels": _channels,
    "all": lambda shape, cores: cores,
    "fill": lambda shape, cores: min(cores, prod(shape) * 2 // FILL_BYTES),
}
DEFAULT_RULE = "512 elements"
VECTOR_RULES: dict[str, str] = {
    **dict.fromkeys(("Adam", "Cast", "Less"), "1024 elements"),
    **dict.fromkeys(
        ("ApplyRMSProp", "FusedMulApplyMomentum", "LambApplyOptimizerAssign", "LambApplyWeightAssign", "ReduceMean",
         "ReduceSum", "SquareSumV1", "SquareSumV2", "TensorMove"), "256 elements",
    ),
    **dict.fromkeys(
        ("BNTrainingReduce", "BNTrainingReduceGrad", "BNTrainingUpdateGrad", "BiasAdd", "Maximum", "Minimum",
         "ReluGradV2", "Sub", "Tile"), "samples",
    ),
    **dict.fromkeys(("Assign", "BNTrainingUpdate", "FusionOp_BNTrainingUpdate_ReLUV2", "Gather"), "channels"),
    **dict.fromkeys(("AvgPool", "BiasAddGrad", "ConfusionSoftmaxGrad"), "even samples"),
    **dict.fromkeys(("LayerNormBetaGammaBackpropV2", "Slice"), "waves of samples"),
    **dict.fromkeys(("NPUClearFloatStatus", "NPUGetFloatStatus", "StridedSlice", "TransData"), "all"),
    "AtomicAddrClean": "fill",
}  # fmt: skip
"""Operator type to rule; all others take :data:`DEFAULT_RULE`."""


def vector_block_dim(op_type: str, largest: Shape, cores: int) -> int:
    """Cores of a vector task whose largest operand has this stored shape."""
    rule = RULES[VECTOR_RULES.get(op_type, DEFAULT_RULE)]
    return max(rule(tuple(largest) or (1,), cores), 1)


def product_block_dim(rows: int, columns: int, cores: int) -> int:
    """Cores of a matrix product of ``rows`` x ``columns`` fractals: divisors of both, or 32 where few would do."""
    reach = {
        m * n
        for m in range(1, _WAVE_CORES + 1)
        if rows % m == 0
        for n in range(1, _WAVE_CORES // m + 1)
        if columns % n == 0
    }
    best = max(count for count in reach if count <= cores)
    if best <= cores // 2 + 1 and _WAVE_CORES in reach:
        return _WAVE_CORES
    if best == 24 and _WAVE_CORES in reach and rows * columns >= 1024:
        return cores if min(rows, columns) >= 192 else _WAVE_CORES
    return best


def convolution_block_dim(kind: str, batch: int, cores: int) -> int:
    """Cores of a convolution (``forward``, ``input`` or ``filter`` for its gradients): samples first."""
    if kind == "forward":
        return max(part for part in range(1, cores + 1) if batch % part == 0)
    if kind == "input":
        return batch if batch <= cores // 2 + 1 else cores
    return min(batch, _WAVE_CORES)
