"""Properties of timing on every chip: better hardware is no slower, causes add up, nothing waits a negative time."""

from dataclasses import replace

import pytest

from metadef.cost.run import run_kernel
from metadef.cost.streams import MemoryState
from metadef.dtype import DType
from metadef.format import Format, TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.select.kernels import KernelChooser
from metadef.select.vector import choose_vector_kernel
from metadef.target import Target, known_targets, load_target

BETTER = {
    "memory": {"memory.hbm_nominal_tb_s": 1.5},
    "l2": {"memory.l2_tb_s": 1.5},
    "cores": {"cores.cube": 2, "cores.vector": 2},
    "clock": {"cores.clock_mhz": 1.25},
}


def changed(target: Target, factors: dict[str, float], tmp_path) -> Target:
    """The chip with some constants multiplied."""
    groups: dict[str, dict[str, str]] = {}
    for key, factor in factors.items():
        group, _, name = key.partition(".")
        value = target.value(key) * factor
        number = int(value) if group == "cores" and name != "clock_mhz" else value
        text = f"{{value: {number}, source: test, sure: unknown}}"
        groups.setdefault(group, {})[name] = text
    lines = [f"inherits: {target.soc}", "soc: Changed"]
    for group, items in groups.items():
        lines += [f"{group}:", *(f"  {name}: {text}" for name, text in items.items())]
    path = tmp_path / "Changed.yaml"
    path.write_text("\n".join(lines) + "\n")
    return load_target(str(path))


def kernels() -> dict[str, Kernel]:
    half = DType.FLOAT16

    def plain(*shape: int) -> TensorDesc:
        return TensorDesc(shape, half)

    def image(n: int, c: int, side: int) -> TensorDesc:
        return TensorDesc((n, c, side, side), half, Format.NCHW, Format.NC1HWC0, 16)

    conv = {"strides": (1,) * 4, "pads": (1,) * 4, "dilations": (1,) * 4, "groups": 1, "data_format": "NCHW"}
    weight = TensorDesc((128, 64, 3, 3), half, Format.NCHW, Format.FRACTAL_Z, 16)
    product = {"transpose_x1": False, "transpose_x2": False}
    big, row = plain(4096, 4096), plain(4096, 1024)
    return {
        "add": Kernel("Add", Engine.VECTOR, (big, big), (big,), {}),
        "exp": Kernel("Exp", Engine.VECTOR, (big,), (big,), {}),
        "softmax": Kernel("SoftmaxV2", Engine.VECTOR, (row,), (row,), {"axes": (-1,)}),
        "conv": Kernel("Conv2D", Engine.AICORE, (image(4, 64, 28), weight, None), (image(4, 128, 28),), conv),
        "matmul": Kernel(
            "MatMulV2", Engine.AICORE, (plain(1024, 512), plain(512, 768), None), (plain(1024, 768),), product
        ),
    }  # fmt: skip


def placed(kernel: Kernel, target: Target) -> Kernel:
    return KernelChooser(target, weights_bytes=1 << 40)(kernel, "node", constant=True)[0]


def microseconds(kernel: Kernel, target: Target) -> float:
    run = run_kernel(placed(kernel, target), target, MemoryState(cold=(0.5, 1.0), write_back=0.5))
    return run.cycles / target.clock_mhz


@pytest.mark.parametrize("soc", known_targets())
@pytest.mark.parametrize("better", BETTER)
def test_better_hardware_is_no_slower(soc, better, tmp_path):
    target = load_target(soc)
    improved = changed(target, BETTER[better], tmp_path)
    slower = {
        name: tuple(microseconds(kernel, chip) for chip in (target, improved)) for name, kernel in kernels().items()
    }
    assert {name: pair for name, pair in slower.items() if pair[1] > 1.02 * pair[0]} == {}


@pytest.mark.parametrize("soc", known_targets())
def test_causes_add_up_and_no_pipe_is_busier_than_its_core(soc):
    target = load_target(soc)
    for kernel in kernels().values():
        run = run_kernel(placed(kernel, target), target, MemoryState(cold=(0.5, 1.0), write_back=0.5), keep=4000)
        assert sum(run.core.why.values()) == run.core.cycles
        assert min(run.core.why.values()) >= 0 and run.launch_cycles > 0
        assert run.mean_cycles <= run.waves * run.core.cycles
        assert all(count <= run.core.cycles for count in run.core.busy.values())
        assert (run.core.intervals[:, 1] >= run.core.intervals[:, 0]).all()


def test_even_shares_leave_no_bandwidth_idle():
    """Twelve pieces over eight cores in one wave: the port serves what is asked, not eight full cores' worth."""
    target = load_target("Ascend310P3")
    full = TensorDesc((12, 64, 4096), DType.FLOAT16)
    kernel = choose_vector_kernel(Kernel("Relu", Engine.VECTOR, (full,), (full,), {}), target)
    run = run_kernel(kernel, target, MemoryState(cold=(1.0,), write_back=1.0))
    most = run_kernel(replace(kernel, block_dim=1), target, MemoryState(cold=(1.0,), write_back=1.0))
    assert run.hbm_bytes == pytest.approx(2 * full.payload_bytes, rel=0.01)
    assert most.core.cycles > run.core.cycles
