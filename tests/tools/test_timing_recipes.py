"""Benchmark cases and profile rows as chains of kernels: read by content, so that unseen shapes and names work."""

import csv

import pytest

from metadef.cost.signature import ELEMENTWISE, ROWS
from metadef.cost.signatures import SIGNATURES, default_signature
from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.target import load_target
from timing_bench_sets import case_us, is_product, predict_case
from timing_chain import Chain, class_of, product
from timing_figures import figures, file_sets, index_rows, left_out
from timing_instruction_sets import vector_instructions
from timing_profile_sets import row_us
from timing_recipes import RECIPES, SIMPLE, Case

B2 = load_target("Ascend910B2")
FIELDS = (
    "id",
    "soc",
    "op_type",
    "input_shapes",
    "input_dtypes",
    "attrs",
    "kernels",
    "duration_us",
    "composite",
    "trust",
)


def row(op_type, shapes, dtypes, attrs="", kernels="", **more):
    values = ("r1", "910B2", op_type, shapes, dtypes, attrs, kernels, "10", "0", "B")
    return {**dict(zip(FIELDS, values)), **more}


def profile_row(op_type, shapes, dtypes, results, **more):
    return {
        "id": "p1", "soc": "910B2", "source": "x", "impl": "vendor_lib", "op_type": op_type, "accelerator": "AIV",
        "input_shapes": shapes, "input_dtypes": dtypes, "input_formats": ";".join(["ND"] * (shapes.count(";") + 1)),
        "output_shapes": results, "output_dtypes": dtypes.split(";")[0], "output_formats": "ND", "block_dim": "",
        "hf32": "NO", "duration_us": "10", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("case", "kernels"),
    [
        (row("exp", "64,100", "float32", kernels="Mulx2+Addx1+Expx1"), ["Muls", "Muls", "Adds", "Exp"]),
        (row("masked_scale", "64,64;64,64", "float16;int8", kernels="Castx1+Mulx2"), ["Cast", "Mul", "Muls"]),
        (row("12_Gemm_Multiply_LeakyReLU", "8,32", "float32", "out_features=64"), ["MatMulV2", "Mul", "LeakyRelu"]),
        (
            row("conv_2d", "1,16,8,8;32,16,3,3;32", "float16", "pads=(1 1 1 1)"),
            ["TransData"] * 2 + ["Conv2D", "TransData"],
        ),
        (row("foreach_norm", "[64,64;128]", "float32"), ["ForeachNorm"]),
    ],
    ids=lambda value: value["op_type"] if isinstance(value, dict) else "",
)
def test_cases_become_kernels(case, kernels):
    from timing_recipes_conv import composed_case

    built = Case.of(case, B2, left_out=False)
    if built.kind in RECIPES:
        RECIPES[built.kind](built)
    else:
        assert composed_case(built)
    assert [kernel.op_type for kernel, _, _ in built.chain.steps] == kernels


@pytest.mark.parametrize("kind", sorted(SIMPLE))
def test_simple_kinds_are_timed_at_any_shape(kind):
    operands = {"swi_glu": 1, "rms_norm": 2, "apply_adam_w": 4, "moe_re_routing": 3}.get(kind, 1)
    shapes = ["37,514"] * operands
    if kind == "rms_norm":
        shapes[1] = "514"
    case = row(kind, ";".join(shapes), ";".join(["float16"] * operands))
    assert case_us(case, B2) > 1
    assert case_us(case, B2, left_out=True) > 1


@pytest.mark.parametrize("name", ["gqa", "sparse_flash_attention", "mla"])
def test_attention_cases(name):
    shapes = {
        "gqa": "2,64,16,128;2,300,4,128;2,300,4,128",
        "sparse_flash_attention": "1,8,16,512;1,900,1,512;1,900,1,512;1,8,1,128",
        "mla": "2,8,16,512;2,8,16,64;2,300,1,512;2,300,1,64;2,300,1,512",
    }[name]
    assert predict_case(row(name, shapes, "float16"), B2).predicted > 5


def test_unknown_kinds_are_not_guessed():
    assert predict_case(row("no_such_case", "8,8", "float32"), B2) is None
    assert is_product(row("gemm", "8,8;8,8", "float16")) and not is_product(row("quant_matmul", "8,8;8,8", "int8"))


def test_unknown_operators_of_a_profile_take_their_class():
    known = row_us(profile_row("Mul", "4096,1024;4096,1024", "FLOAT;FLOAT", "4096,1024"), B2)
    unknown = row_us(profile_row("NeverSeen", "4096,1024;4096,1024", "FLOAT;FLOAT", "4096,1024"), B2)
    assert 0.5 * known < unknown < 10 * known
    shape = TensorDesc((64, 64), DType.FLOAT)
    assert class_of([shape], [shape]) == ELEMENTWISE
    assert class_of([shape], [TensorDesc((64,), DType.FLOAT)]) == ROWS
    assert class_of([], [shape]) == "written"


def test_default_lists_leave_the_type_itself_out():
    kind = SIGNATURES["DynamicQuant"].kind
    others = default_signature(kind, "DynamicQuant")
    assert kind == ROWS and others.work and others.row_calls > 0
    assert default_signature("no such class") == default_signature(ELEMENTWISE)


def test_l2_holds_what_a_kernel_left():
    chain = Chain(B2)
    x = chain.value((4096, 2048), DType.FLOAT16)
    first = Chain(B2)
    first.vector("Exp", [first.value((4096, 2048), DType.FLOAT16)])
    chain.vector("Exp", [chain.vector("Exp", [x])])
    assert chain.us("benchmark") < 1.9 * first.us("benchmark")


def test_products_with_what_follows():
    def us(**how):
        chain = Chain(B2)
        a, b = chain.value((1024, 1024), DType.INT8), chain.value((1024, 1024), DType.INT8)
        product(chain, a, b, 1024, 1024, 1024, out=DType.FLOAT16, **how)
        return chain.us("benchmark")

    assert us() < us(listed=True) and us() < us(finish=("Dequant",))


def _write(folder, name, rows):
    (folder / "measured").mkdir(exist_ok=True)
    with (folder / "measured" / f"{name}.csv").open("w", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_files_count_all_their_rows(tmp_path):
    cases = [row("mish", "64,64", "float32", id="a"), row("other", "64,64", "float32", id="b")]
    cases += [row("mish", "64,64", "float32", id="c", trust="C"), row("mish", "64,64", "float32", id="d", soc="950PR")]
    _write(tmp_path, "op_bench_cases", cases)
    pair = predict_case(cases[0], B2)
    sets = file_sets([pair], index_rows(tmp_path))
    assert sets["op_bench_cases"]["coverage"] == pytest.approx(1 / 3, abs=1e-3)
    assert sets["op_bench_cases:910B"]["coverage"] == 0.5
    blind = left_out([pair], index_rows(tmp_path))["op_bench_cases"]
    assert blind["fitted"] == figures([pair], 3) and blind["left_out"]["rows"] == 1


def test_cycles_of_a_thousand_instructions(tmp_path):
    fields = {"id": "v", "soc": "910B1", "instr": "VMULS", "dtypes": "FP16_FP16", "elements": "1280", "repeat": "10"}
    _write(tmp_path, "instr_vec", [{**fields, "elements_per_cycle": "127.5", "cycles_per_instr": "10036"}])
    (pair,) = vector_instructions(tmp_path).pairs
    assert pair.measured == pytest.approx(10.036)
