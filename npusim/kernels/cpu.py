"""What the host CPU can do, as far as generated code depends on it.

Every kernel generator asks here which instructions it may rely on; the object store uses the same answer as part of
its key. `NUMBA_CPU_NAME` and `NUMBA_CPU_FEATURES` override the detection exactly as they do for Numba, so the whole
library can be run as if on a plainer machine (`NUMBA_CPU_NAME=generic`).
"""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from pathlib import Path

_DEFAULT_L1_BYTES = 32 * 1024
_DEFAULT_L2_BYTES = 512 * 1024
_DEFAULT_L3_BYTES = 32 * 1024 * 1024


@dataclass(frozen=True)
class Cpu:
    """Instruction-set facts of the CPU code is generated for."""

    triple: str
    name: str
    features: str
    x86: bool
    half: bool  # native half <-> float conversion
    fma: bool  # native fused multiply-add
    round: bool  # native floor / ceil / rint
    wide: bool  # 32 vector registers of 512 bits
    vector: bool = False  # 256-bit integer and float registers of x86
    halved: bool = False  # works on 512-bit registers in halves, on pipes that either multiply, or add and convert

    @property
    def path(self) -> str:
        """The instructions kernels are made of, in a few words: `AVX-512`, `AVX2, FMA, F16C`, `generic x86-64`…"""
        if not self.x86:
            return self.triple.partition("-")[0]
        if self.wide:
            return "AVX-512"
        own = [word for word, there in (("AVX2", self.vector), ("FMA", self.fma), ("F16C", self.half)) if there]
        return ", ".join(own) if own else "generic x86-64"

    @property
    def panel(self) -> int:
        """Output channels one register tile covers: 32 where 512-bit registers exist, else 16."""
        return 32 if self.wide else 16

    @property
    def tile_rows(self) -> int:
        """Largest number of pixels (rows of A) in one register tile."""
        return 14 if self.wide else 6


@functools.cache
def host() -> Cpu:
    """The CPU that kernels are compiled for in this process."""
    import llvmlite.binding as llvm

    name = os.environ.get("NUMBA_CPU_NAME", "").strip()
    flags = os.environ.get("NUMBA_CPU_FEATURES")
    if not name or name == "host":
        name = str(llvm.get_host_cpu_name())
        if flags is None:
            flags = str(llvm.get_host_cpu_features().flatten())
    return describe(str(llvm.get_process_triple()), name, flags or "")


def describe(triple: str, name: str, features: str) -> Cpu:
    """Instruction-set facts for a target triple, LLVM CPU name and feature string (`+avx2,-sse4a`)."""
    x86 = triple.startswith(("x86_64", "i686"))
    on = {f[1:] for f in features.split(",") if f.startswith("+")}
    if name in ("x86-64-v3", "x86-64-v4"):
        on |= {"sse4.1", "avx2", "f16c", "fma"}
    if name == "x86-64-v4":
        on |= {"avx512f", "avx512vl", "avx512bw", "avx512dq"}
    wide = x86 and {"avx512f", "avx512vl", "avx512bw", "avx512dq"} <= on
    return Cpu(
        triple=triple,
        name=name,
        features=features,
        x86=x86,
        half="f16c" in on if x86 else True,
        fma="fma" in on if x86 else True,
        round="sse4.1" in on if x86 else True,
        vector=x86 and "avx2" in on,
        wide=wide,
        halved=wide and name == "znver4",
    )


def l1_bytes() -> int:
    """Size of the level-1 data cache of one core in bytes (32 KiB where the system does not say)."""
    return _cache_bytes(1, _DEFAULT_L1_BYTES)


def l2_bytes() -> int:
    """Size of the level-2 cache of one core in bytes (512 KiB where the system does not say)."""
    return _cache_bytes(2, _DEFAULT_L2_BYTES)


def last_cache_bytes() -> int:
    """Size of the level-3 cache that cores share in bytes (32 MiB where there is none or the system does not say)."""
    return _cache_bytes(3, _DEFAULT_L3_BYTES)


@functools.cache
def _cache_bytes(level: int, default: int) -> int:
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            own, kind, text = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if own == str(level) and kind in ("Data", "Unified"):
            digits = text.rstrip("KM")
            scale = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 1)
            return int(digits) * scale if digits.isdigit() else default
    return default
