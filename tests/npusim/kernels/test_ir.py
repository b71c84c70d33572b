"""Conversions of the IR vocabulary, and that no kernel calls out of itself on any target."""

import re
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from metadef.dtype import DType
from metadef.ops.numeric import narrow
from npusim.kernels import store
from npusim.kernels.catalog import common_kernels
from npusim.kernels.cpu import describe, host
from npusim.kernels.elementwise import View, elementwise
from tests.npusim.kernels.inputs import address, run

TARGETS = [
    ("x86_64-unknown-linux-gnu", "x86-64", ""),
    ("x86_64-unknown-linux-gnu", "x86-64-v3", ""),
    ("x86_64-unknown-linux-gnu", "x86-64-v4", ""),
    ("x86_64-unknown-linux-gnu", "znver4", "+avx2,+fma,+f16c,+sse4.1,+avx512f,+avx512vl,+avx512bw,+avx512dq"),
    ("aarch64-unknown-linux-gnu", "generic", ""),
]
AWKWARD = [
    "map:f16,f32:f16:mul(floor(x0),x1)",
    "map:f32:u8:x0",
    "tile:f16:1:1x6:3:12:f16",
    "tile:f16:1:6x0:16:64:f16",
    "tile:f32:1:1x6:16:64:sums",
    "tile:f32:0:1x6:4:64:f16",
    "pool:f16:16:avg",
    "flat:bf16,bf16:bf16:add(x0,x1)",
    "tile:bf16:1:1x6:16:64:bf16",
    "matmul:i8:i32",
    "fourier:input:f16:12",
    "fourier:output:bf16:12",
    "spectra:products",
]
MORE = [
    "map:f32,f32:f32:fmod(x0,x1)",
    "map:i64,i64:i64:mod(x0,x1)",
    "map:f32:i64:round(x0)",
    "map:f32,f32:f16:pow(x0,x1)",
    "tile:f16:2:1x14:16:64:f32",
    *("tile:f16>f32:2:2x7:16:64:f16", "tile:bf16>f32:1:1x6:16:64:bf16", "tile:i8>f32:1:1x6:0:64:raw"),
    "tile:f32:1:1x6:0:64:raw",
    "conv:f16:f16:lanes",
    *(f"conv:bf16:bf16:{kind}" for kind in ("dense", "narrow", "depthwise", "lanes", "pieces")),
    *("matmul:bf16:bf16", "packb:bf16:2", "pool:bf16:16:avg", "transdata:bf16:f32:16:to", "transdata:f32:bf16:16:from"),
    *("softmax:bf16:bf16:plain", "layernorm:bf16:bf16:bf16:layer", "winograd:bf16:bf16:2:guarded:1.0"),
    *(f"conv:i8:i32:{kind}" for kind in ("dense", "narrow", "depthwise", "lanes", "pieces")),
    *("matmul:i8:i32", "packb:i8:2", "tile:i8:1:1x6:16:64:raw", "tile:i8:2:1x14:16:64:raw", "tile:i8:1:1x6:0:64:raw"),
    *("fourier:input:bf16:20", "fourier:output:f16:20", "fourier:depthwise:bf16:bf16:20"),
    *("fourier:input:f32:48", "fourier:output:f32:48", "fourier:depthwise:f16:f16:48"),
    *("stream:f16:f16:sigmoid(x0)", "stream:bf16:bf16:exp(x0)", "stream:f32:i64:x0", "softmax:f16:f16:plain:stream"),
    *("softmax:f16:f16:plain:pairs", "softmax:f32:f16:plain:turns", "flat:f16:f16:exp(x0)"),
    *("softmax:f32:bf16:log:stream", "layernorm:f16:f16:f16:layer:stream", "layernorm:f32:f32:f32:rms:stream"),
    "reduce:f16:f16:l2:along",
    "reduce:bf16:bf16:max:across",
    "map:bf16,f32:bf16:pow(x0,x1)",
]


def convert(x: np.ndarray, source: str, target: str, dtype: type) -> np.ndarray:
    out = np.zeros(x.shape, dtype)
    run(
        elementwise("x0", [View.dense(address(x), source, x.shape)], View.dense(address(out), target, x.shape), x.shape)
    )
    return out


def test_every_half_widens_exactly() -> None:
    halves = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(np.float16)
    got = convert(halves, "f16", "f32", np.float32)
    np.testing.assert_array_equal(got, halves.astype(np.float32))
    np.testing.assert_array_equal(np.signbit(got), np.signbit(halves))


def test_narrowing_rounds_to_nearest_even() -> None:
    halves = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)
    middles = ((halves[:-1] + halves[1:]) / 2).astype(np.float32)
    around = np.concatenate([middles, np.nextafter(middles, np.float32(0)), np.nextafter(middles, np.float32(np.inf))])
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2**32, 1 << 16, dtype=np.uint64).astype(np.uint32).view(np.float32)
    x = np.concatenate([around, -around, bits, np.array([65519.996, 65520, np.inf, np.nan, 1e-8], np.float32)])
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(convert(x, "f32", "f16", np.float16), x.astype(np.float16))


def test_every_bfloat_widens_exactly() -> None:
    bits = np.arange(65536, dtype=np.uint32).astype(np.uint16)
    got = convert(bits.view(ml_dtypes.bfloat16), "bf16", "f32", np.float32)
    np.testing.assert_array_equal(got.view(np.uint32), bits.astype(np.uint32) << 16)


def test_narrowing_to_bfloat_is_the_twins() -> None:
    rng = np.random.default_rng(0)
    upper = np.arange(65536, dtype=np.uint32) << 16
    bits = np.concatenate([upper + low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)])
    bits = np.concatenate([bits, rng.integers(0, 2**32, 1 << 16, dtype=np.uint64).astype(np.uint32)])
    x = bits.view(np.float32)
    np.testing.assert_array_equal(convert(x, "f32", "bf16", np.uint16), narrow(x, DType.BF16))


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_saturation_is_the_twins(dtype: str) -> None:
    kind = DType.FLOAT16 if dtype == "f16" else DType.BF16
    x = np.array([np.inf, -np.inf, np.nan, 1e38, -3.4e38, 65519.9, 65520, 1.5], np.float32)
    out = np.zeros(x.shape, kind.numpy)
    views = View.dense(address(x), "f32", x.shape), View.dense(address(out), dtype, x.shape)
    run(elementwise("x0", [views[0]], views[1], x.shape, saturate=True))
    np.testing.assert_array_equal(out, narrow(x, kind, "saturate"))


@pytest.mark.parametrize("target", TARGETS, ids=[f"{t[0].split('-')[0]}-{t[1]}" for t in TARGETS])
def test_kernels_call_nothing_outside(target: tuple[str, str, str]) -> None:
    calls_nothing(AWKWARD, target)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS, ids=[f"{t[0].split('-')[0]}-{t[1]}" for t in TARGETS])
def test_common_kernels_call_nothing_outside(target: tuple[str, str, str]) -> None:
    calls_nothing([*MORE, *(n for n in common_kernels() if not n.startswith("exec:"))], target)


def calls_nothing(names: list[str], target: tuple[str, str, str]) -> None:
    cpu = describe(*target)
    for name in names:
        text = store.assembly(name, cpu)
        own = set(re.findall(r"^([\w.$]+):", text, re.M))
        called = re.findall(r"^\s+(?:callq?|jmp|bl?)\s+([A-Za-z_][\w.@$]*)", text, re.M)
        assert {c.split("@")[0] for c in called} <= own, name


def test_cpu_override(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    plain = host.__wrapped__()
    assert (plain.name, plain.features, plain.panel) == ("generic", "", 16)
    assert not plain.x86 or not (plain.half or plain.fma or plain.round or plain.wide)


def test_generators_name_no_machine_code_twice() -> None:
    names = common_kernels()
    assert len(names) == len(set(names)) == len({store.symbol(n) for n in names})
    assert Path(store.__file__).parent.name == "kernels"
