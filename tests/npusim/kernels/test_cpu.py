import pytest

from npusim.kernels.cpu import describe

LINUX = "x86_64-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("triple", "name", "features", "path"),
    [
        (LINUX, "x86-64", "", "generic x86-64"),
        (LINUX, "x86-64-v3", "", "AVX2, FMA, F16C"),
        (LINUX, "x86-64-v4", "", "AVX-512"),
        (LINUX, "znver3", "+avx2,+fma,+f16c,+sse4.1", "AVX2, FMA, F16C"),
        (LINUX, "haswell", "+avx2,+fma,-f16c", "AVX2, FMA"),
        ("aarch64-unknown-linux-gnu", "generic", "", "aarch64"),
    ],
)
def test_path_names_the_instructions(triple: str, name: str, features: str, path: str) -> None:
    assert describe(triple, name, features).path == path


def test_which_cpus_work_on_long_registers_in_halves() -> None:
    long = "+avx512f,+avx512vl,+avx512bw,+avx512dq"
    halved = [describe(LINUX, name, long).halved for name in ("znver4", "x86-64-v4", "sapphirerapids")]
    assert halved == [True, False, False]
    assert not describe(LINUX, "znver4", "+avx2").halved
