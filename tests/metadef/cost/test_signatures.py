"""Timing-only operators: every signature is timed, dealt out and accounted for."""

import pytest

from metadef.cost.run import run_kernel
from metadef.cost.signature import ELEMENTWISE, Moves
from metadef.cost.signature_view import signature_kernel
from metadef.cost.signatures import SIGNATURES, Deal, Rows, default_signature, find_signature
from metadef.cost.vector_view import VectorView
from metadef.dtype import DType
from metadef.error import OperatorError
from metadef.format import Format, TensorDesc
from metadef.kernel import TIMING_ONLY
from metadef.target import load_target

G1, B3 = load_target("Ascend910B-30core"), load_target("Ascend910B3")
PLANES = TensorDesc((16, 64, 28, 28), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16)
STATISTICS = TensorDesc((1, 64, 1, 1), DType.FLOAT, Format.NCHW, Format.NC1HWC0, 16)


def plain(*shape, dtype=DType.FLOAT):
    return TensorDesc(shape, dtype)


@pytest.mark.parametrize("target", [G1, B3], ids=["910", "910B"])
@pytest.mark.parametrize("op_type", sorted(SIGNATURES))
def test_every_signature_is_timed(op_type, target):
    planes = SIGNATURES[op_type].rows is Rows.PLANES or "Pool" in op_type
    desc = PLANES if planes else plain(512, 384)
    rows = plain(512, dtype=DType.INT32)
    operands = (desc, rows) if op_type in ("Gather", "GatherV2", "UnsortedSegmentSum") else (desc, desc)
    kernel = signature_kernel(op_type, operands, (desc,), target)
    run = run_kernel(kernel, target)
    assert kernel.algorithm == TIMING_ONLY
    assert sum(run.core.why.values()) == run.core.cycles > 0
    assert run.moved["UB->GM"] > 0


def test_unknown_type_is_an_error():
    with pytest.raises(OperatorError, match="no timing signature of 'Nothing'"):
        signature_kernel("Nothing", (plain(8),), (plain(8),), G1)
    assert find_signature("Nothing") is None


def test_whole_samples_go_to_cores():
    kernel = signature_kernel("BNTrainingReduceGrad", (PLANES, PLANES, STATISTICS), (PLANES,), G1, block_dim=16)
    view = VectorView.of(kernel, G1)
    assert SIGNATURES["BNTrainingReduceGrad"].deal is Deal.SAMPLES
    assert view.share(16) == view.deal and view.share(15) == 2 * view.deal
    uneven = signature_kernel("BNTrainingReduceGrad", (PLANES, PLANES, STATISTICS), (PLANES,), G1, block_dim=15)
    assert run_kernel(uneven, G1).core.cycles > 1.5 * run_kernel(kernel, G1).core.cycles


def test_one_sample_a_core_is_not_double_buffered():
    def cycles(samples):
        big = TensorDesc((samples, 64, 56, 56), DType.FLOAT16, Format.NCHW, Format.NC1HWC0, 16)
        kernel = signature_kernel("BNTrainingUpdateGrad", (big, big, STATISTICS), (STATISTICS,), G1, block_dim=16)
        return run_kernel(kernel, G1).core.cycles

    assert cycles(32) < 1.9 * cycles(16)


def test_slices_move_only_their_part_unless_rows_are_odd():
    whole = plain(1024, 96, 16)
    wide = signature_kernel("Slice", (whole,), (plain(1024, 8, 16),), G1, block_dim=30)
    odd = signature_kernel("StridedSlice", (plain(1024, 85),), (plain(1024, 3),), G1, block_dim=30)
    moved = run_kernel(wide, G1).moved["GM->UB"]
    assert moved == pytest.approx(1024 * 8 * 16 * 4, rel=0.05)
    run = run_kernel(odd, G1)
    assert run.moved["GM->UB"] == pytest.approx(1024 * 85 * 4, rel=0.05)
    assert run.core.busy["SCALAR"] > 0


def test_clears_by_few_cores_are_small():
    cleared = plain(4096, 1024)
    one = run_kernel(signature_kernel("AtomicAddrClean", (cleared,), (), G1, block_dim=1), G1)
    all_cores = run_kernel(signature_kernel("AtomicAddrClean", (cleared,), (), G1, block_dim=30), G1)
    assert one.moved["UB->GM"] < 1024 < all_cores.moved["UB->GM"]


def test_a_class_without_another_type_moves_as_the_class_does():
    only = default_signature("elements", "Transpose")
    assert only.moves is Moves.ELEMENTS and only.work == default_signature(ELEMENTWISE).work


def test_the_list_of_a_class_does_not_take_scalar_code_from_one_type():
    fill = default_signature("written", "AtomicAddrClean")
    assert fill.moves is Moves.WRITTEN and fill.setup == 0 and fill.work == ("add", "add")
