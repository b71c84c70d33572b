"""A vector unit with registers: one function a tile, ports or units decide, a list costs less than its parts."""

import pytest

from metadef.cost.registers import function, in_registers
from metadef.cost.run import run_kernel
from metadef.cost.vector_view import Stream, VectorView, Work
from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.select.vector import choose_vector_kernel
from metadef.target import load_target, replaced

NEXT = load_target("Ascend950PR")
MIB = 1 << 20


def works(*names: str, size: int = MIB) -> list[Work]:
    return [Work(name, 4, bytes=size) for name in names]


def test_cheap_instructions_wait_for_the_ports():
    one, two = (function(works(*["add"] * count), NEXT, loads=2, stores=1) for count in (1, 2))
    assert one.cycles_per_repeat == two.cycles_per_repeat == pytest.approx(1.24)
    assert two.start_cycles == one.start_cycles + NEXT.vector_instruction("add", 4)[0]


def test_long_lists_share_the_units():
    item = function(works("exp", "div", "mul", "add"), NEXT, loads=1, stores=1)
    assert item.cycles_per_repeat == pytest.approx((4 + 4 + 1 + 1) / 2)
    assert (item.calls, item.all_calls) == (0, 0)


def test_rows_end_in_the_chain_of_their_reduction():
    rows = [Work("reduce_sum", 4, repeats=4096, calls=0.0, all_calls=1024.0)]
    item = function(rows, NEXT, loads=1, stores=0)
    chain = NEXT.vector_instruction("reduce_sum", 4)[0] + NEXT.value("vector.row_cycles")
    assert item.cycles_per_repeat * 4096 == pytest.approx(4096 * 1 + 1024 * chain)


def test_rearranging_stays_as_it_is():
    move = Work("copy", 2, repeats=100, cycles_per_repeat=6)
    scalar = Work("copy", 2, scalar_cycles=1000.0)
    stream = (Stream(0, MIB),)
    view = VectorView(10, 1, stream, stream, (*works("mul", "exp"), move, scalar))
    assert in_registers(view, NEXT).work[1:] == (move, scalar)
    idle = VectorView(10, 1, stream, stream, (move,))
    assert in_registers(idle, NEXT) is idle


@pytest.mark.parametrize("op_type", ["Add", "Exp", "Gelu", "SoftmaxV2", "LayerNorm"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (64, 4096), (33, 1023)])
def test_registers_are_no_slower(op_type, shape):
    desc, row = TensorDesc(shape, DType.FLOAT), TensorDesc(shape[-1:], DType.FLOAT)
    inputs = {"Add": (desc, desc), "LayerNorm": (desc, row, row)}.get(op_type, (desc,))
    attrs = {"SoftmaxV2": {"axes": (-1,)}, "LayerNorm": {"begin_norm_axis": 1, "epsilon": 1e-5}}.get(op_type, {})
    kernel = Kernel(op_type, Engine.VECTOR, inputs, (desc,), attrs)
    old = replaced(NEXT, {"vector.registers": False})
    fast, slow = (run_kernel(choose_vector_kernel(kernel, chip), chip) for chip in (NEXT, old))
    assert fast.core.busy["VECTOR"] <= slow.core.busy["VECTOR"] + NEXT.value("vector.function_cycles")
    assert sum(fast.core.why.values()) == fast.core.cycles
