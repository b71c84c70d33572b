"""The vendor's split rules: published launches of the first generation, and that no rule leaves the sensible range."""

import pytest

from metadef.select.vendor import (
    RULES,
    VECTOR_RULES,
    convolution_block_dim,
    product_block_dim,
    vector_block_dim,
)


@pytest.mark.parametrize(
    ("op_type", "shape", "cores"),
    [
        ("Mul", (768, 3072), 30), ("Mul", (1280,), 3), ("Cast", (20, 512), 10), ("TransData", (32, 100), 30),
        ("BNTrainingUpdateGrad", (16, 4, 56, 56, 16), 16), ("FusionOp_BNTrainingUpdate_ReLUV2", (16, 2, 35, 35, 16), 2),
        ("FusionOp_BNTrainingUpdate_ReLUV2", (64, 2, 35, 35, 16), 30), ("Slice", (64, 18, 35, 35, 16), 64),
        ("FusedMulApplyMomentum", (2560,), 10),
    ],
)  # fmt: skip
def test_published_launches_of_vector_tasks(op_type, shape, cores):
    assert vector_block_dim(op_type, shape, 30) == cores


def test_whole_units_go_evenly_to_cores():
    assert [RULES["even samples"]((count,), 30) for count in (16, 32, 48, 64)] == [16, 16, 24, 22]


def test_every_rule_gives_at_least_one_core():
    assert set(VECTOR_RULES.values()) <= set(RULES)
    for op_type in (*VECTOR_RULES, "Unknown"):
        for shape in ((), (1,), (0,), (7, 1, 1, 1, 16), (512, 4096)):
            assert vector_block_dim(op_type, shape, 30) >= 1


def test_products_split_by_divisors_and_the_rest_was_tuned_for_32_cores():
    assert product_block_dim(192, 48, 30) in (24, 32)
    assert product_block_dim(1321, 7, 30) == 7
    assert product_block_dim(64, 64, 30) == 32
    for rows, columns in ((1, 1), (25, 12), (1250, 64), (3, 5)):
        assert 1 <= product_block_dim(rows, columns, 30) <= 32


def test_convolutions_take_samples_first():
    assert [convolution_block_dim("forward", batch, 30) for batch in (16, 32, 64)] == [16, 16, 16]
    assert [convolution_block_dim("input", batch, 30) for batch in (16, 32, 64)] == [16, 30, 30]
    assert [convolution_block_dim("filter", batch, 30) for batch in (16, 32, 64)] == [16, 32, 32]
