"""A better chip is never slower, neither for the same task nor for what is compiled for it, launch included."""

import tempfile
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadef.cost.run import run_kernel
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.select.kernels import KernelChooser
from metadef.target import Target, known_targets, load_target

SLACK = 1.02
KNOBS = {
    "memory": ("memory.hbm_nominal_tb_s", "memory.dram_core_bytes_per_cycle", "memory.dram_core_cube_bytes_per_cycle"),
    "l2": ("memory.l2_tb_s", "memory.l2_core_bytes_per_cycle"),
    "load": ("paths.GM->UB.bytes_per_cycle", "paths.GM->UB.sustained_bytes_per_cycle"),
    "cores": ("cores.cube", "cores.vector"),
    "clock": ("cores.clock_mhz",),
}


@cache
def better(soc: str, knob: str, factor: float) -> Target:
    """The chip with the constants of a knob multiplied."""
    chip = load_target(soc)
    tree: dict[str, dict] = {}
    for key in KNOBS[knob]:
        *groups, last = key.split(".")
        place = tree
        for group in groups:
            place = place.setdefault(group, {})
        value = chip.value(key) * factor
        place[last] = {"value": int(value) if knob == "cores" else value, "source": "test", "sure": "unknown"}
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "better.yaml"
        path.write_text(yaml.safe_dump({"inherits": soc, "soc": "better", **tree}))
        return load_target(str(path))


def kernel_of(kind: str, size: int, depth: int, target: Target) -> Kernel:
    """The task as its node says it, without a tile."""
    fp16 = DType.FLOAT16
    if kind == "matmul":
        a, b, c = (TensorDesc(shape, fp16) for shape in ((size, depth), (depth, 256), (size, 256)))
        flags = {"transpose_x1": False, "transpose_x2": False}
        return Kernel("MatMulV2", Engine.AICORE, (a, b), (c,), flags)
    if kind == "conv":
        side, c0 = 14 + size % 43, target.c0(fp16)
        x = TensorDesc((1, 64, side, side), fp16, Format.NCHW, Format.NC1HWC0, c0)
        w = TensorDesc((64, 64, 3, 3), fp16, Format.NCHW, Format.FRACTAL_Z, c0)
        attrs = {
            "strides": (1,) * 4, "pads": (1,) * 4, "dilations": (1,) * 4, "groups": 1, "data_format": "NCHW",
        }  # fmt: skip
        return Kernel("Conv2D", Engine.AICORE, (x, w, None), (x,), attrs)
    desc = TensorDesc((size, depth), fp16)
    operands = (desc, desc) if kind == "Add" else (desc,)
    attrs = {"axes": (-1,)} if kind == "SoftmaxV2" else {}
    return Kernel(kind, Engine.VECTOR, operands, (desc,), attrs)


def chosen(kernel: Kernel, target: Target, weights_bytes: int = 0) -> Kernel:
    return KernelChooser(target, weights_bytes)(kernel, "node", constant=True)[0]


@pytest.mark.parametrize("soc", ["Ascend910B3", "Ascend310P3"])
@settings(max_examples=30, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["Add", "Exp", "SoftmaxV2", "matmul", "conv"]),
    size=st.integers(1, 3000),
    depth=st.integers(8, 1500),
    knob=st.sampled_from(sorted(KNOBS)),
    factor=st.sampled_from([1.1, 1.5, 2.0]),
    cold=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_a_better_chip_is_never_slower(soc, kind, size, depth, knob, factor, cold):
    plain = load_target(soc)
    faster = better(soc, knob, factor)
    kernel = chosen(kernel_of(kind, size, depth, plain), plain)
    state = MemoryState(cold=(cold,) * 4, write_back=cold)
    before, after = (run_kernel(kernel, chip, state) for chip in (plain, faster))
    assert after.cycles / faster.clock_mhz <= before.cycles / plain.clock_mhz * SLACK
    assert sum(after.core.why.values()) == after.core.cycles
    assert all(count >= 0 for count in after.core.why.values())


@pytest.mark.parametrize("soc", known_targets())
@settings(max_examples=20, deadline=None, derandomize=True)
@given(
    kind=st.sampled_from(["Add", "Exp", "SoftmaxV2", "matmul", "conv"]),
    size=st.integers(1, 3000),
    depth=st.integers(8, 1500),
    knob=st.sampled_from(sorted(KNOBS)),
    factor=st.sampled_from([1.03, 1.1, 1.25, 1.5, 2.0]),
    cold=st.booleans(),
    write_back=st.sampled_from([0.0, 2.0]),
)
def test_what_is_compiled_for_a_better_chip_is_never_slower(soc, kind, size, depth, knob, factor, cold, write_back):
    """More cores too: what their start costs counts, so a short task must not take them all."""
    plain = load_target(soc)
    faster = better(soc, knob, factor)
    weights_bytes = 1 << 40 if cold else 0
    kernels = [chosen(kernel_of(kind, size, depth, plain), chip, weights_bytes) for chip in (plain, faster)]
    state = MemoryState(cold=(0.0, float(cold)), write_back=write_back)
    before, after = (run_kernel(kernel, chip, state) for kernel, chip in zip(kernels, (plain, faster)))
    assert after.cycles / faster.clock_mhz <= before.cycles / plain.clock_mhz * SLACK


@pytest.mark.parametrize("shape", [(16, 6, 10, 10), (5, 60, 28, 8), (38, 128, 7, 9), (3, 685, 28, 48)])
def test_sums_over_columns_keep_the_strips_they_were_dealt_in(shape):
    """A chip with more cores deals narrower strips, which fill fewer lanes; a kernel with a tile keeps its own."""
    desc = TensorDesc(shape, DType.FLOAT16)
    kernel = Kernel("SoftmaxV2", Engine.VECTOR, (desc,), (desc,), {"axes": (1,)})
    plain, wide = load_target("Ascend910B1"), better("Ascend910B1", "cores", 3.0)
    before, same, after = (
        run_kernel(chosen(kernel, chip), on).cycles for chip, on in ((plain, plain), (plain, wide), (wide, wide))
    )
    assert max(same, after) <= before * SLACK
