"""Memory of this computer for a device's regions: refused with sizes and names before a run would exhaust it."""

from __future__ import annotations

import os
from pathlib import Path

from metadef.capacity import largest_text, operand_sizes
from metadef.error import HostMemoryError
from metadef.program import Program

_MEMINFO = Path("/proc/meminfo")


def check_host_memory(program: Program, room_bytes: int | None) -> None:
    """Raises HostMemoryError if arena, inputs and outputs need more than ``room_bytes`` (None: unknown)."""
    if room_bytes is not None and program.arena_bytes + program.io_bytes > room_bytes:
        raise host_memory_error(program, f"at most {room_bytes:,} bytes")


def host_memory_error(program: Program, expected: str = "") -> HostMemoryError:
    """The refusal: what the program needs, its largest tensors, what to try."""
    return HostMemoryError(
        f"this computer's memory cannot hold the device memory of '{program.name}'",
        expected=expected,
        got=f"arena {program.arena_bytes:,} + inputs and outputs {program.io_bytes:,} bytes; "
        + largest_text(item for item in operand_sizes(program) if not item[0].endswith("(weights)")),
        hint="a smaller batch or smaller inputs (--dim, --shape); npusim plan and compile need no such memory",
    )


def physical_bytes() -> int | None:
    """Main memory of this computer, None where the system does not tell."""
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names or "SC_PAGE_SIZE" not in names:
        return None
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def available_bytes() -> int | None:
    """What programs may still take without swapping (Linux); elsewhere the main memory, None where unknown."""
    if not _MEMINFO.exists():
        return physical_bytes()
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return physical_bytes()
