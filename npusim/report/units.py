"""How numbers are shown: bytes, cycles and shares in one style everywhere."""

from __future__ import annotations


def show_bytes(count: float) -> str:
    """``1606144`` becomes ``1.53 MiB``; below one KiB plain bytes."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024 or unit == "GiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.2f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")


def show_us(us: float) -> str:
    """Microseconds with three significant figures, milliseconds from 10 ms up."""
    if us >= 10_000:
        return f"{us / 1000:.1f} ms"
    return f"{us:.0f} us" if us >= 100 else f"{us:.1f} us" if us >= 10 else f"{us:.2f} us"


def show_share(part: float, whole: float) -> str:
    """A percentage; ``-`` when the whole is nothing."""
    return f"{100 * part / whole:.1f} %" if whole else "-"
