import re

import pytest

from npusim.kernels import store
from npusim.kernels.cpu import describe

_STACK = re.compile(r"\(%rsp\).*%[yz]mm|%[yz]mm.*\(%rsp\)")


@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4"])
def test_sums_of_the_largest_tiles_stay_in_registers(name: str) -> None:
    cpu = describe("x86_64-unknown-linux-gnu", name, "")
    shapes = ("1x14", "2x7") if cpu.wide else ("1x6", "6x0")
    for weights in ("f32", "f16", "f16>f32", "bf16>f32", "i8>f32"):
        for shape in shapes:
            tile = f"tile:{weights}:{cpu.panel // 16}:{shape}:16:64:f16"
            lines = store.assembly(tile, cpu).splitlines()
            sums = [number for number, line in enumerate(lines) if "vfmadd" in line]
            spilt = [line for line in lines[sums[0] : sums[-1]] if _STACK.search(line)]
            assert not spilt, (tile, spilt)


@pytest.mark.parametrize("pixels", [1, 4])
def test_small_tiles_of_long_taps_stay_small(pixels: int) -> None:
    """A first layer's window may be hundreds of columns wide, all of one tap."""
    cpu = describe("x86_64-unknown-linux-gnu", "x86-64-v4", "")
    for channels in (21, 33, 1024, 2048):
        lines = store.assembly(f"tile:f32:2:1x{pixels}:{channels}:{channels * 4}:f16", cpu).splitlines()
        assert sum("vfmadd" in line for line in lines) <= 32 * pixels * 2, channels
