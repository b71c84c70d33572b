"""HeavyFormatPropagation: attention on a chip without a fixpipe stays in fractals, and computes the same."""

import numpy as np
import pytest

from make_models import encoder_block, random_inputs
from metadef.compiler import CompileOptions, compile_model
from metadef.dtype import DType
from metadef.error import InferError
from metadef.format import Format, TensorDesc
from metadef.op import get_op
from npusim import InferenceSession, SessionOptions

P3 = "Ascend310P3"


def kernels(length: int, soc: str = P3):
    made = compile_model(encoder_block(), CompileOptions(soc=soc, dims={"batch": 2, "seq": length}, check=True))
    return [task.kernel for task in made.model.program.tasks]


@pytest.mark.parametrize("length", [48, 50])
def test_scores_and_norms_lie_in_fractals(length):
    found = kernels(length)
    for kernel in found:
        if kernel.op_type in ("BatchMatMulV2", "SoftmaxV2"):
            assert kernel.outputs[0].format is Format.FRACTAL_NZ and kernel.inputs[0].format is Format.FRACTAL_NZ
    assert any(kernel.op_type == "SoftmaxV2" for kernel in found)


def test_the_factor_of_the_scores_is_in_the_product():
    scores = [kernel for kernel in kernels(48) if any(item.op_type in ("Mul", "RealDiv") for item in kernel.fused)]
    assert len(scores) == 1 and scores[0].op_type == "BatchMatMulV2"


def test_chips_with_a_fixpipe_keep_plain_tensors():
    plain = [kernel for kernel in kernels(48, "Ascend910B3") if kernel.op_type == "SoftmaxV2"]
    assert all(desc.is_plain for kernel in plain for desc in (*kernel.inputs, *kernel.outputs))


@pytest.mark.parametrize("length", [16, 37])
def test_fractals_compute_what_rows_compute(length):
    model, dims = encoder_block(seed=3), {"batch": 2, "seq": length}
    feeds = random_inputs(model, 1, **dims)
    data = model.SerializeToString()
    made = [
        InferenceSession(data, SessionOptions(soc=P3, dims=dims, threads=1, disabled_passes=frozenset(off))).run(
            None, feeds
        )[0]
        for off in ((), ("HeavyFormatPropagation", "TbeBatchMatmulElementWiseFusionPass"))
    ]
    assert np.abs(made[0].astype(np.float32) - made[1]).max() < 2e-2 * np.abs(made[1]).max()


def test_heads_that_fill_fractals_take_no_transpose():
    found = kernels(48)
    assert not any(kernel.op_type == "TransposeD" for kernel in found)
    flags = [kernel.attrs.get("adj_x2") for kernel in found if kernel.op_type == "BatchMatMulV2"]
    assert flags.count(True) == 1


def test_heads_with_padding_are_transposed_between_plain_tensors():
    assert sum(kernel.op_type == "TransposeD" for kernel in kernels(50)) == 4


@pytest.mark.parametrize(("length", "format"), [(48, Format.FRACTAL_NZ), (50, Format.ND)])
def test_norms_take_fractals_only_where_rows_fill_them(length, format):
    found = [kernel for kernel in kernels(length) if kernel.op_type == "LayerNorm"]
    assert {kernel.outputs[0].format for kernel in found[1:]} == {format}


@pytest.mark.parametrize("heads", [1, 2, 3])
def test_heads_compute_what_views_and_transposes_compute(heads):
    opdef = get_op("FractalHeads")
    x = np.arange(2 * 5 * 6 * heads, dtype=np.float32).reshape(2, 5, 6 * heads)
    (split,) = opdef.reference([x], {"heads": heads, "join": False})
    assert np.array_equal(split, x.reshape(2, 5, heads, 6).transpose(0, 2, 1, 3))
    (joined,) = opdef.reference([split], {"heads": heads, "join": True})
    assert np.array_equal(joined, x)


@pytest.mark.parametrize("shape", [(4, 7), (2, 5, 7), (2, 3, 5, 4)])
def test_heads_that_do_not_fit_are_refused(shape):
    with pytest.raises(InferError, match="heads do not fit"):
        get_op("FractalHeads").infer([TensorDesc(shape, DType.FLOAT16)], {"heads": 2, "join": len(shape) == 4})
