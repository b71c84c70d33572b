"""Kernels of a chip on a variation of it: taken where they fit and nothing shorter is found."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadef.cost.run import kernel_cost
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.select.kernels import KernelChooser
from metadef.select.variation import fits, shortest, with_fewer_cores
from metadef.select.vector import choose_vector_kernel
from metadef.target import known_targets, load_target, replaced
from tests.metadef.select.test_cube import conv_kernel, matmul_kernel

B3, P3 = load_target("Ascend910B3"), load_target("Ascend310P3")
WIDE = replaced(B3, {"cores.vector": 80, "cores.cube": 40})
SMALL = Kernel("Exp", Engine.VECTOR, (TensorDesc((434, 395), DType.FLOAT16),), (TensorDesc((434, 395), DType.FLOAT16),))


def test_chips_of_the_package_vary_none_and_own_files_the_one_they_inherit_from(tmp_path):
    assert {load_target(soc).base for soc in known_targets()} == {None}
    path = tmp_path / "Mine.yaml"
    path.write_text("inherits: Ascend310P3\nsoc: Mine\n")
    assert load_target(str(path)).base == P3
    (tmp_path / "Again.yaml").write_text("inherits: Mine\nsoc: Again\n")
    again = load_target(str(tmp_path / "Again.yaml")).base
    assert again is not None and (again.soc, again.base) == ("Mine", P3)
    assert WIDE.base == B3


def test_a_short_task_does_not_start_cores_it_has_no_use_for():
    base, _ = KernelChooser(B3)(SMALL, "node")
    kernel, _ = KernelChooser(WIDE)(SMALL, "node")
    assert choose_vector_kernel(SMALL, WIDE).block_dim > base.block_dim == kernel.block_dim == B3.vector_cores
    assert kernel.tile == base.tile and kernel.reason.startswith("as on Ascend910B3: ")
    assert kernel_cost(kernel, WIDE) < kernel_cost(choose_vector_kernel(SMALL, WIDE), WIDE)


def test_a_long_task_takes_more_of_them():
    kernel, _ = KernelChooser(WIDE)(matmul_kernel(4096, 4096, 4096), "node")
    assert kernel.block_dim > B3.cube_cores and "as on" not in kernel.reason


@pytest.mark.parametrize(
    ("values", "kernel"),
    [
        ({"cores.vector": 20}, SMALL),
        ({"cores.cube": 3}, matmul_kernel(1024, 768, 512)),
        ({"buffers.UB": 16384}, SMALL),
        ({"granules.L1": 4096, "granules.L0B": 4096}, matmul_kernel(1000, 768, 560)),
        ({"buffers.L1": 65536}, conv_kernel(P3, 1, 64, 56, 56, 64, 3, pad=1)),
    ],
)
def test_what_does_not_fit_is_not_taken(values, kernel):
    chip = replaced(P3 if kernel.op_type == "Conv2D" else B3, values)
    assert chip.base is not None
    assert not fits(KernelChooser(chip.base)(kernel, "node")[0], chip)
    chosen, _ = KernelChooser(chip)(kernel, "node")
    assert fits(chosen, chip) and "as on" not in chosen.reason


def test_the_shortest_is_hardly_longer_than_the_first_wherever_operands_lie():
    """All cores halve what is read from L2; where it comes from memory they only take longer to start."""
    desc = TensorDesc((4096, 8192), DType.FLOAT16)
    large = replace(SMALL, inputs=(desc,), outputs=(desc,))
    few, many = (choose_vector_kernel(large, WIDE, block_dim=cores) for cores in (40, 80))
    cold = MemoryState((1.0,), write_back=1.0)
    assert kernel_cost(many, WIDE) < kernel_cost(few, WIDE)
    assert shortest([few, many], WIDE, cold_b=False) == int(
        kernel_cost(many, WIDE, cold) <= 1.02 * kernel_cost(few, WIDE, cold)
    )
    assert shortest([few, few], WIDE, cold_b=False) == 0


def test_a_variation_of_a_variation_takes_what_that_one_had_taken():
    """Also where that was the kernel of the chip which it varies itself."""
    again = replaced(WIDE, {"memory.l2_tb_s": 2 * WIDE.value("memory.l2_tb_s")})
    kernel, _ = KernelChooser(again)(SMALL, "node")
    assert kernel.block_dim == B3.vector_cores
    assert kernel_cost(kernel, again) <= kernel_cost(KernelChooser(WIDE)(SMALL, "node")[0], again)


def test_further_cores_are_tried_in_steps():
    assert [chip.vector_cores for chip in with_fewer_cores(WIDE)] == [40, 53, 66, 80]
    assert [chip.cube_cores for chip in with_fewer_cores(WIDE)] == [20, 26, 33, 40]
    for chip in (B3, replaced(B3, {"cores.vector": 20}), replaced(B3, {"cores.clock_mhz": 2000})):
        assert with_fewer_cores(chip) == [chip]
