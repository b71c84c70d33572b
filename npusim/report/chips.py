"""The list of chips that can be simulated."""

from __future__ import annotations

from typing import Any

from metadef.target import known_targets, load_target, other_names
from npusim.report.units import show_bytes


def chip_rows() -> list[dict[str, Any]]:
    """One dictionary a chip."""
    rows = []
    for name in known_targets():
        target = load_target(name)
        rows.append(
            {
                "soc": target.soc,
                "also": [other for other, meant in other_names().items() if meant == name],
                "cube_cores": target.cube_cores,
                "vector_cores": target.vector_cores,
                "coupled": target.coupled,
                "clock_mhz": target.clock_mhz,
                "fp16_tflops": round(target.peak_tflops, 1),
                "hbm_tb_per_s": round(target.hbm_tb_per_s, 3),
                "device_bytes": target.device_bytes,
                "l2_bytes": target.value("memory.l2_bytes"),
                "buffer_bytes": dict(target.buffer_bytes),
                "overflow": target.overflow,
                "cube_dtypes": sorted(item.label for item in target.cube_dtypes),
            }
        )
    return rows


def print_chips(rows: list[dict[str, Any]], console: Any) -> None:
    """Print the list to a rich console."""
    from rich.table import Table

    table = Table(header_style="bold")
    for title in (
        "chip",
        "cube cores",
        "vector cores",
        "clock",
        "fp16 peak",
        "memory",
        "L2",
        "L1",
        "UB",
        "L0C",
        "overflow",
        "cube types",
    ):
        table.add_column(title)
    for row in rows:
        buffers = row["buffer_bytes"]
        table.add_row(
            ", ".join([row["soc"], *row["also"]]),
            str(row["cube_cores"]),
            "shared" if row["coupled"] else str(row["vector_cores"]),
            f"{row['clock_mhz']:.0f} MHz",
            f"{row['fp16_tflops']:.0f} TFLOPS",
            f"{show_bytes(row['device_bytes'])}, {row['hbm_tb_per_s']:.2f} TB/s",
            show_bytes(row["l2_bytes"]),
            *(show_bytes(buffers[name]) for name in ("L1", "UB", "L0C")),
            row["overflow"],
            ", ".join(row["cube_dtypes"]),
        )
    console.print(table)
