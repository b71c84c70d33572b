"""Benchmark cases as the kernels that the vendor's library runs for them: one function for each kind of case.

A case is known by its name, shapes, types and attributes alone. Element-wise kinds need no function of their own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.select.attention import Attention, attention_kernel
from metadef.target import Target
from timing_chain import Chain, Value, joined_products, product, widened_product
from timing_data import DTYPES, parse_shapes


@dataclass
class Case:
    """A benchmark case: operands by position (None where one is left out), attributes as text, and its tasks so far."""

    kind: str
    shapes: list[tuple[int, ...]]
    dtypes: list[DType | None]
    attrs: dict[str, str]
    kernels: str
    chain: Chain
    lists: list[list[tuple[int, ...]]] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)

    @classmethod
    def of(cls, row: dict[str, str], target: Target, left_out: bool) -> Case:
        kind = re.sub(r"^\d+_", "", row["op_type"]).strip("_")
        attrs = dict(part.split("=", 1) for part in row["attrs"].split(";") if "=" in part)
        groups = re.findall(r"\[([^\]]*)\]|([^;\[\]]+|(?<=;)(?=;)|(?<=;)$)", row["input_shapes"])
        lists = [parse_shapes(inner) if inner else parse_shapes(outer) for inner, outer in groups]
        dtypes = [DTYPES.get(name) for name in row["input_dtypes"].split(";")]
        shapes = [shape for group in lists for shape in group]
        if not lists:
            shapes, lists = [()], [[()]]
        return cls(kind, shapes, dtypes, attrs, row["kernels"], Chain(target, left_out), lists)

    @property
    def first(self) -> tuple[int, ...]:
        return self.shapes[0]

    @property
    def dtype(self) -> DType:
        return self.dtypes[0] or DType.FLOAT

    def type_of(self, position: int) -> DType:
        found = self.dtypes[position] if position < len(self.dtypes) else None
        return found or self.dtype

    def input(self, position: int = 0, shape: tuple[int, ...] | None = None, dtype: DType | None = None) -> Value:
        """An operand of the case, optionally seen in another shape."""
        if position not in self.values:
            own = self.shapes[position]
            self.values[position] = self.chain.value(own if shape is None else shape, dtype or self.type_of(position))
        return self.values[position]

    def inputs(self) -> list[Value]:
        """All operands that are given."""
        return [self.input(at) for at, shape in enumerate(self.shapes) if shape]

    def numbers(self, name: str) -> list[int]:
        return [int(part) for part in re.findall(r"-?\d+", self.attrs.get(name, ""))]


Recipe = Callable[[Case], None]
RECIPES: dict[str, Recipe] = {}


def recipe(*kinds: str) -> Callable[[Recipe], Recipe]:
    def keep(function: Recipe) -> Recipe:
        RECIPES.update(dict.fromkeys(kinds, function))
        return function

    return keep


SIMPLE = {
    "mish": "Mish", "sigmoid": "Sigmoid", "Sigmoid": "Sigmoid", "gelu": "Gelu", "GELU": "Gelu", "maximum": "Maximum",
    "softmax": "SoftmaxV2", "Softmax": "SoftmaxV2", "LogSoftmax": "LogSoftmaxV2", "rms_norm": "RmsNorm", "ReLU": "Relu",
    "LeakyReLU": "LeakyRelu", "Tanh": "Tanh", "HardSigmoid": "HardSigmoid", "Softplus": "Softplus", "ELU": "Elu",
    "LayerNorm": "LayerNorm", "SELU": "Selu", "add": "Add", "sqrt": "Sqrt", "gcd": "Gcd",
    "swi_glu": "SwiGlu", "dynamic_quant": "DynamicQuant", "moe_re_routing": "MoeReRouting", "cumsum": "Cumsum",
    "cumprod": "Cumprod", "moe_gating_top_k_softmax": "MoeGatingTopKSoftmax", "mse_loss_backward": "MseLossGrad",
    "cumsum_exclusive": "Cumsum", "masked_cumsum": "Cumsum", "transpose": "Transpose", "t_copy": "Transpose",
    "cumsum_reverse": "Cumsum", "apply_adam_w": "ApplyAdamW", "Swish": "Swish", "MinGPTNewGelu": "Gelu",
    "Matrix_scalar_multiplication": "Muls", "relu": "Relu", "tanh": "Tanh", "layer_norm": "LayerNorm", "mul": "Mul",
}  # fmt: skip
"""Kinds that are one kernel over their operands, and its operator type."""


@recipe(*SIMPLE)
def _simple(case: Case) -> None:
    name = SIMPLE[case.kind]
    if "Composite" in name or (case.kind == "swi_glu" and "Slice" in case.kernels):
        case.chain.vector("Slice", [case.input()], case.first)
    x = case.input(0, (prod(case.first[:-1]), case.first[-1])) if name in ("Cumsum", "Cumprod") else case.input()
    outputs: list[TensorDesc] = []
    shape, dtype = case.first, case.dtype
    if name in ("SwiGlu",):
        shape = (*shape[:-1], shape[-1] // 2)
    if name == "DynamicQuant":
        dtype = DType.INT8
    if name == "ApplyAdamW":
        outputs = [TensorDesc(item, case.type_of(at)) for at, item in enumerate(case.shapes[:3])]
    if name == "Transpose":
        order = case.numbers("perm") or [*range(len(shape) - 2), len(shape) - 1, len(shape) - 2]
        shape = tuple(shape[axis] for axis in order)
    if name == "Cumsum" and "reverse" in case.kind:
        x = case.chain.vector("ReverseV2", [x])
    inputs = [x, *case.inputs()[1:]]
    if name == "Cumsum":
        inputs = inputs[:1]
    attrs = {"perm": tuple(order)} if name == "Transpose" else {}
    case.chain.vector(name, inputs, shape, dtype, outputs=outputs, **attrs)
    if name == "Cumsum" and "reverse" in case.kind:
        case.chain.vector("ReverseV2", [x])


@recipe("HardTanh")
def _hard_tanh(case: Case) -> None:
    case.chain.vector("Minimum", [case.chain.vector("Maximum", [case.input()])])


@recipe("Softsign")
def _softsign(case: Case) -> None:
    x = case.input()
    low = case.chain.vector("Adds", [case.chain.vector("Abs", [x])])
    case.chain.vector("RealDiv", [x, low])


@recipe("exp")
def _exp(case: Case) -> None:
    x = case.input()
    scaled = 2 if "Mulx2" in case.kernels else int("Mul" in case.kernels)
    for _ in range(scaled):
        x = case.chain.vector("Muls", [x])
    if "Add" in case.kernels:
        x = case.chain.vector("Adds", [x])
    case.chain.vector("Exp" if case.kernels else "AbsScaleExp", [x])


@recipe("masked_scale")
def _masked_scale(case: Case) -> None:
    x, mask = case.input(0), case.input(1)
    if "Cast" in case.kernels:
        mask = case.chain.vector("Cast", [mask], dtype=x.dtype)
    y = case.chain.vector("Mul", [x, mask])
    case.chain.vector("Muls", [y])


@recipe("foreach_norm", "foreach_addcdiv_scalar")
def _foreach(case: Case) -> None:
    flat = [(sum(prod(shape) for shape in group),) for group in case.lists if any(group)]
    values = [case.chain.value(shape, case.dtype) for shape in flat]
    if case.kind == "foreach_addcdiv_scalar":
        case.chain.vector("ForeachAddcdiv", values)
        return
    x = values[0]
    if "LpNorm" not in case.kernels:
        case.chain.vector("ForeachNorm", [x], (1,))
        return
    if "Cast" in case.kernels:
        x = case.chain.vector("Cast", [x], dtype=DType.FLOAT)
    part = case.chain.vector("LpNormReduceV2", [x], (1,))
    case.chain.vector("LpNormUpdateV2", [part], (1,))
    if "Cast" in case.kernels:
        case.chain.vector("Cast", [part], (1,), case.dtype)


@recipe("group_norm", "GroupNorm")
def _group_norm(case: Case) -> None:
    groups = (case.numbers("num_groups") or [32])[0]
    x = case.input(0, (case.first[0] * groups, prod(case.first[1:]) // groups))
    case.chain.vector("GroupNorm", [x, *case.inputs()[1:]])


@recipe("BatchNorm", "InstanceNorm")
def _batch_norm(case: Case) -> None:
    n, c = case.first[:2]
    x = case.input(0, (n * c, prod(case.first[2:])))
    part = case.chain.vector("BnStatistics", [x], (n * c, 2))
    case.chain.vector("BnUpdate", [x, part])


@recipe("RMSNorm", "L1Norm", "L2Norm", "FrobeniusNorm")
def _plain_norm(case: Case) -> None:
    """Composed of element-wise kernels and a sum: along the second axis, or along the last of two."""
    x, axis = case.input(), 1
    square = case.chain.vector("Abs" if case.kind == "L1Norm" else "Square", [x])
    shape = tuple(1 if at == axis else size for at, size in enumerate(case.first))
    if case.kind == "FrobeniusNorm":
        shape = (1,) * len(shape)
    total = case.chain.vector("ReduceSum", [square], shape)
    if case.kind != "L1Norm":
        total = case.chain.vector("Sqrt", [total], shape)
    case.chain.vector("RealDiv", [x, total])


@recipe(
    "Sum_reduction_over_a_dimension", "Product_reduction_over_a_dimension", "Min_reduction_over_a_dimension",
    "Max_reduction_over_a_dimension", "Argmax_over_a_dimension", "Argmin_over_a_dimension",
    "Mean_reduction_over_a_dimension", "arg_max", "mean_reduction_over_a_dimension", "adaptive_avg_pool_3d",
)  # fmt: skip
def _reduce(case: Case) -> None:
    axis = (case.numbers("dim") or [len(case.first) - 1])[0] % len(case.first)
    shape = tuple(1 if at == axis else size for at, size in enumerate(case.first))
    name = "ReduceSum" if case.kind.startswith(("Sum", "Mean", "adaptive")) else "ReduceMax"
    if case.kind == "adaptive_avg_pool_3d":
        case.input(0, (prod(case.first[:-3]), prod(case.first[-3:])))
        shape = (prod(case.first[:-3]), 1)
    if "arg" in case.kind.lower():
        # Rows are along the reduced axis, wherever it is.
        inner = prod(case.first[axis + 1 :])
        case.input(0, (prod(case.first[:axis]) * max(inner // 64, 1), case.first[axis] * min(inner, 64)))
    if "arg" in case.kind.lower():
        name = "ArgMaxV2"
    result = case.chain.vector(name, [case.input()], shape, DType.INT32 if name == "ArgMaxV2" else case.dtype)
    if "Cast" in case.kernels:
        case.chain.vector("Cast", [result], shape, DType.INT64)


@recipe("cross_entropy_loss", "CrossEntropyLoss")
def _cross_entropy(case: Case) -> None:
    x, labels = case.input(0), case.input(1)
    logs = case.chain.vector("LogSoftmaxV2", [x])
    weights = case.chain.vector("OnesLike", [], (case.first[1],), case.dtype)
    case.chain.vector("NLLLoss", [logs, labels, weights], case.first[:1])


@recipe("TripletMarginLoss", "HuberLoss", "KLDivLoss", "HingeLoss", "MSELoss", "CosineSimilarityLoss")
def _loss(case: Case) -> None:
    values = case.inputs()
    chain = case.chain
    if case.kind == "TripletMarginLoss":
        ends = [_distance(chain, values[0], other) for other in values[1:3]]
        chain.vector("ReduceSum", [chain.vector("Sub", ends)], (1,))
        return
    other = values[1] if len(values) > 1 else values[0]
    if case.kind == "KLDivLoss":
        logs = chain.vector("Log", values[:1])
        chain.vector("ReduceSum", [chain.vector("KLDiv", [logs, other])], (1,))
        return
    if case.kind == "CosineSimilarityLoss":
        parts = [chain.vector("Mul", pair) for pair in ((values[0], other), (values[0],) * 2, (other,) * 2)]
        sums = [chain.vector("ReduceSum", [part], part.shape[:1]) for part in parts]
        chain.vector("ReduceSum", [chain.vector("RealDiv", sums[:2])], (1,))
        return
    if case.kind == "HingeLoss":
        y = chain.vector("Mul", [values[0], other])
        y = chain.vector("Adds", [chain.vector("Muls", [y])])
        chain.vector("ReduceSum", [chain.vector("Relu", [y])], (1,))
        return
    chain.vector("ReduceSum", [chain.vector("SmoothL1LossV2", [values[0], other])], (1,))


def _distance(chain: Chain, left: Value, right: Value) -> Value:
    """Distance of the rows of two matrices, as the framework composes it."""
    gap = chain.vector("Adds", [chain.vector("Sub", [left, right])])
    return chain.vector("ReduceSum", [chain.vector("Square", [gap])], left.shape[:1])


@recipe("Matrix_vector_multiplication", "Matmul_with_diagonal_matrices")
def _thin_product(case: Case) -> None:
    """A product by a vector; a diagonal is laid out as a matrix first."""
    if len(case.first) == 1:
        n = case.first[0]
        whole = case.chain.vector("Diag", [case.input()], (n, n))
        product(case.chain, whole, case.input(1), n, case.shapes[1][-1], n)
        return
    (m, k), n = case.first, case.shapes[1][-1] if len(case.shapes[1]) > 1 else 1
    product(case.chain, case.input(), case.input(1), m, n, k)


@recipe(*(f"{kind}_Pooling_{axes}D" for kind in ("Max", "Average") for axes in (1, 2, 3)))
def _pooling(case: Case) -> None:
    """Pooling between layout changes; what a window's taps execute is the pooling operator's own list."""
    from timing_recipes_conv import pool

    pool(case)


@recipe("unsorted_segment_sum")
def _segment_sum(case: Case) -> None:
    x, at = case.input(0), case.input(1)
    count = (case.numbers("num_segments") or [case.shapes[1][0]])[0]
    rows = (case.first[0], prod(case.first[1:]))
    table = case.chain.vector("ZerosLike", [], (count, rows[1]), case.dtype)
    if "Cast" in case.kernels:
        at = case.chain.vector("Cast", [at], dtype=DType.INT64)
    if "Sort" in case.kernels:
        at = case.chain.vector("Sort", [at], dtype=DType.INT32)
    case.chain.vector("UnsortedSegmentSum", [x, at, table], (count, rows[1]))


@recipe("scatter")
def _scatter(case: Case) -> None:
    case.chain.vector("ScatterElements", case.inputs())


@recipe("apply_rotary_pos_emb")
def _rotary(case: Case) -> None:
    q, k, cos, sin = (case.input(at) for at in range(4))
    shape = (*cos.shape[:-1], 2 * cos.shape[-1])
    tables = []
    for item in (cos, sin):
        whole = item
        if "RepeatInterleave" in case.kernels:
            whole = case.chain.vector("RepeatInterleave", [item], shape)
        elif "ConcatD" in case.kernels:
            whole = case.chain.vector("ConcatD", [item, item], shape)
        if "BroadcastTo" in case.kernels:
            lead = case.first[:1] if case.first[0] != 1 else ()
            whole = case.chain.vector("BroadcastTo", [whole], (*lead, *shape))
        tables.append(whole)
    outputs = [q.desc, k.desc]
    case.chain.vector("ApplyRotaryPosEmb", [q, k, *tables], outputs=outputs)


@recipe("add_rms_norm_dynamic_quant", "multi_add_rms_norm_dynamic_quant")
def _add_norm_quant(case: Case) -> None:
    shapes = [shape for shape in case.shapes if shape]
    inputs = [case.chain.value(shape, case.dtype) for shape in shapes]
    smooth = sum(len(shape) == 1 for shape in shapes) - 1
    outputs = [TensorDesc(shapes[0], DType.INT8)] * max(1, min(smooth, 2)) + [TensorDesc(shapes[0], case.dtype)]
    added = len([shape for shape in shapes if len(shape) > 1])
    name = "AddRmsNormDynamicQuant" if added <= 2 and case.kind[0] == "a" else "MultiAddRmsNormDynamicQuant"
    if name[0] == "M":
        outputs.append(TensorDesc(shapes[0], case.dtype))
    case.chain.vector(name, inputs, outputs=outputs)


@recipe("dequant_swiglu_quant")
def _dequant_swiglu(case: Case) -> None:
    shape = (*case.first[:-1], case.first[-1] // 2)
    case.chain.vector("DequantSwigluQuant", case.inputs(), shape, DType.INT8)


@recipe("moe_finalize_routing")
def _moe_finalize(case: Case) -> None:
    case.chain.vector("MoeFinalizeRouting", case.inputs(), case.shapes[2])


@recipe("kv_rms_norm_rope_cache_v2")
def _kv_norm_rope(case: Case) -> None:
    rows = prod(case.first[:-1])
    x = case.input(0, (rows, case.first[-1]))
    values = [x, *(case.input(at) for at in (2, 3) if case.shapes[at])]
    kind = case.type_of(5)
    name = "KvRmsNormRopeCacheNz" if "NZ" in case.attrs.get("cache_mode", "") else "KvRmsNormRopeCache"
    case.chain.vector(name, values, (rows, 2 * case.first[-1]), kind)


@recipe("scatter_pa_kv_cache")
def _scatter_cache(case: Case) -> None:
    for position in (0, 3):
        shape = case.shapes[position]
        lane = case.shapes[position + 1][-1]
        x = case.input(position, (prod(shape) // lane, lane))
        case.chain.value(shape, x.dtype)
        if position == 0:
            held = x
    case.chain.vector("ScatterPaKvCache", [held, case.input(3)], outputs=[held.desc, case.input(3).desc])


@recipe("ai_infra_scatter_block_update")
def _scatter_blocks(case: Case) -> None:
    update, at = case.input(2), case.input(1)
    case.chain.vector("ScatterBlockUpdate", [update, at], outputs=[update.desc])


@recipe("top_k_top_p_sample_v2")
def _sample(case: Case) -> None:
    case.chain.vector("TopKTopPSample", [case.input(0)], outputs=[TensorDesc(case.first, DType.FLOAT)])


@recipe("advance_step_v2")
def _advance(case: Case) -> None:
    case.chain.vector("AdvanceStep", [case.input(0), case.input(4)], outputs=[TensorDesc(case.first, DType.INT64)])


# -- products ----------------------------------------------------------------------------------------------------------


def _matrix_sides(case: Case) -> tuple[int, int, int, int]:
    """(batch, m, n, k) of the first two operands."""
    a, b = case.shapes[0], case.shapes[1]
    transposed = "transposed_A" in case.kind
    m, k = (a[-1], a[-2]) if transposed else (a[-2], a[-1])
    n = b[-1] if b[-2] == k else b[-2]
    if len(b) == 2:
        return 1, m if transposed else prod(a) // k, n, k
    return prod(b[:-2]), m, n, k


@recipe("quant_matmul")
def _quant_matmul(case: Case) -> None:
    batch, m, n, k = _matrix_sides(case)
    out = DTYPES[case.attrs.get("output_dtype", "float16")]
    plain = case.attrs.get("output_dtype") == "float16" and len(case.shapes) < 5
    finish = () if plain else ("Dequant",)
    _quantised(case, batch, m, n, k, out, finish)


def _quantised(case: Case, batch: int, m: int, n: int, k: int, out: DType, finish: tuple[str, ...]) -> None:
    """An int8 product; scales per token and 16-bit floats other than fp16 need the vector cores."""
    a, b = case.chain.value((batch, m, k), DType.INT8), case.chain.value((batch, k, n), DType.INT8)
    product(case.chain, a, b, m, n, k, batch=batch, out=out, finish=finish)


@recipe("grouped_matmul")
def _grouped(case: Case) -> None:
    k, groups = case.first[-1], case.shapes[1][0]
    n = case.shapes[1][2] if case.attrs.get("transpose_weight") == "False" else case.shapes[1][1]
    turned = (False, case.attrs.get("transpose_weight") == "True")
    ends = case.numbers("group_list")
    sizes = [after - before for before, after in zip([0, *ends], ends)] or [case.first[0] // groups]
    rows = -(-sum(sizes) // groups)
    a, b = case.chain.value((groups, rows, k), case.dtype), case.chain.value((groups, k, n), case.dtype)
    product(case.chain, a, b, rows, n, k, batch=groups, turned=turned, listed=True)


@recipe("grouped_matmul_swiglu_quant")
def _grouped_quant(case: Case) -> None:
    groups, k, n = case.shapes[1]
    weights = case.chain.value((groups, k, n), DType.INT8)
    packed = TensorDesc((groups, k, n), DType.INT8, Format.ND, Format.FRACTAL_NZ, 32)
    plain = case.chain.target.value("cube.loads_plain")
    if not plain:
        case.chain.vector("TransData", [weights], outputs=[packed])
    rows = -(-case.first[0] // groups)
    a = case.chain.value((groups, rows, k), DType.INT8)
    product(
        case.chain, a, weights, rows, n, k, batch=groups, out=DType.INT8, finish=("DequantSwiglu",), packed=not plain
    )


@recipe("matmul_bias_activation")
def _matmul_activation(case: Case) -> None:
    """A product, its bias, and an activation by kernels of their own."""
    batch, m, n, k = _matrix_sides(case)
    y = product(case.chain, case.input(0), case.input(1), m, n, k, batch=batch)
    name = {"gelu": "Gelu", "sigmoid": "Sigmoid", "tanh": "Tanh"}.get(case.attrs.get("activation", "").lower(), "Relu")
    case.chain.vector(name, [y])


@recipe("weight_quant_batch_matmul")
def _weight_quant(case: Case) -> None:
    _, m, n, k = _matrix_sides(case)
    a, b = case.chain.value((m, k), case.dtype), case.chain.value((k, n), DType.INT8)
    widened_product(case.chain, a, b, m, n, k)


@recipe("mla_prolog")
def _mla_prolog(case: Case) -> None:
    tokens, width = prod(case.first[:-1]), case.first[-1]
    first, second, third, fourth = (case.shapes[at] for at in range(1, 5))
    parts = [
        (1, tokens, first[1], width), (1, tokens, second[1], second[0]), (third[0], tokens, third[2], third[1]),
        (1, tokens, fourth[1], width),
    ]  # fmt: skip
    joined_products(case.chain, parts, case.dtype)


# -- attention ---------------------------------------------------------------------------------------------------------


@recipe("mha", "gqa", "flash_attention", "mla", "sparse_flash_attention")
def _attention(case: Case) -> None:
    size = attention_size(case)
    kernel = attention_kernel(size, case.chain.target)
    values = [case.chain.hold(desc) for desc in kernel.inputs if desc is not None]
    case.chain.cube(kernel, values, chosen=True)


def attention_size(case: Case) -> Attention:
    """Sizes from shapes in the order batch, length, heads, width (BSND) or batch, heads, length, width (BNSD)."""
    heads_first = case.attrs.get("inputLayout") == "BNSD"

    def sides(shape: tuple[int, ...]) -> tuple[int, int, int, int]:
        b, second, third, d = shape
        return (b, third, second, d) if heads_first else (b, second, third, d)

    batch, queries, heads, width = sides(case.shapes[0])
    if case.kind == "mla":
        _, keys, kv_heads, value = sides(case.shapes[2])
        return Attention(batch, heads, kv_heads, queries, keys, width + case.shapes[1][-1], value, case.dtype)
    _, keys, kv_heads, _ = sides(case.shapes[1])
    value = case.shapes[2][-1]
    if case.kind == "sparse_flash_attention":
        kept = case.shapes[3][-1]
        # Every query has its own keys, so queries share nothing.
        return Attention(batch * queries, heads, kv_heads, 1, kept, width, value, case.dtype)
    return Attention(batch, heads, kv_heads, queries, keys, width, value, case.dtype)
