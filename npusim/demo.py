"""The demo: the bundled digit classifier, compiled, run on its test pictures and explained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from npusim.data import digits_model, digits_samples
from npusim.profile import Profile
from npusim.session import InferenceSession, SessionOptions


@dataclass(frozen=True)
class DemoResult:
    """What the demo found. ``reference_accuracy`` is that of the stored onnxruntime outputs on the same pictures."""

    soc: str
    images: np.ndarray
    labels: np.ndarray
    outputs: np.ndarray
    accuracy: float
    reference_accuracy: float
    cosine: float
    agree: int
    session: InferenceSession
    files: tuple[Path, ...]

    @property
    def profile(self) -> Profile:
        return self.session.profile.data

    def as_json(self) -> dict[str, Any]:
        """Plain values for ``--json``."""
        program = self.session.program
        return {
            "soc": self.soc,
            "images": len(self.labels),
            "accuracy": self.accuracy,
            "reference_accuracy": self.reference_accuracy,
            "same_answer_as_onnxruntime": self.agree,
            "cosine": self.cosine,
            "cycles": self.profile.cycles,
            "us": round(self.profile.us, 3),
            "peak_bytes": program.total_size,
            "tasks": len(program.tasks),
            "host_tasks": sum(task.on_host for task in program.tasks),
            "files": [str(path) for path in self.files],
        }


def run_demo(soc: str, out: Path, stage: Callable[[str], None]) -> DemoResult:
    """Compile for ``soc``, run every bundled picture, write trace and pictures into ``out``.

    Raises:
        LabError: an unknown chip, or a folder that cannot be written.
    """
    from npusim.report.files import write_reports

    samples = digits_samples()
    images, labels, stored = samples.as_input(), samples.labels, samples.outputs
    options = SessionOptions(soc=soc, shapes={"image": (1, 1, 28, 28)})
    session = InferenceSession(digits_model(), options, on_stage=lambda name, value: stage(name))
    rows = []
    for index in range(len(images)):
        stage(f"picture {index + 1} of {len(images)}")
        rows.append(session.run(None, {"image": images[index : index + 1]})[0][0])
    outputs = np.stack(rows)
    stage("reports")
    files = write_reports(out, session.program, session.profile.data, session.target)
    answers, stored_answers = outputs.argmax(1), stored.argmax(1)
    return DemoResult(
        soc=session.program.soc,
        images=images,
        labels=labels,
        outputs=outputs,
        accuracy=float((answers == labels).mean()),
        reference_accuracy=float((stored_answers == labels).mean()),
        cosine=float(np.vdot(outputs, stored) / (np.linalg.norm(outputs) * np.linalg.norm(stored))),
        agree=int((answers == stored_answers).sum()),
        session=session,
        files=tuple(files),
    )


def show_demo(result: DemoResult, console: Any) -> None:
    """Print the demo's findings."""
    from npusim.report.table import print_table
    from npusim.report.units import show_bytes, show_us

    program = result.session.program
    console.print(f"[bold]A digit classifier on a simulated {result.soc}[/bold]  (fp16, no card, no CANN)\n")
    for line in _picture_lines(result, count=5):
        console.print(line, highlight=False, markup=False)
    total = len(result.labels)
    console.print(
        f"\n[bold]Numbers[/bold]  {result.accuracy:.1%} of {total} pictures right; "
        f"onnxruntime in fp32: {result.reference_accuracy:.1%}; "
        f"same answer on {result.agree} of {total}, cosine {result.cosine:.6f}",
        highlight=False,
    )
    console.print(
        f"[bold]Cycles[/bold]   {result.profile.cycles:,} = {show_us(result.profile.us)} a picture "
        f"in {len(program.tasks)} tasks, {sum(task.on_host for task in program.tasks)} of them on the host",
        highlight=False,
    )
    console.print(
        f"[bold]Memory[/bold]   arena {show_bytes(program.total_size)} "
        f"(lower bound {show_bytes(program.theory_min)}, without reuse {show_bytes(program.no_reuse)}), "
        f"weights {show_bytes(program.weights_bytes)}\n",
        highlight=False,
    )
    print_table(result.profile, console, top=8, compact=True)
    for path in result.files:
        console.print(f"wrote {path}", highlight=False)
    console.print("open trace.json at ui.perfetto.dev; next: npusim profile YOUR_MODEL.onnx", highlight=False)


def _picture_lines(result: DemoResult, count: int) -> list[str]:
    """A few pictures side by side in half blocks, with answer and probability below."""
    shades = " ░▒▓█"
    lines = []
    chosen = np.linspace(0, len(result.images) - 1, count + 2).astype(int)[1:-1]
    shown = result.images[chosen, 0, ::2]
    levels = (
        np.clip((shown - shown.min()) / max(float(np.ptp(shown)), 1e-9) * (len(shades) - 1), 0, len(shades) - 1)
        .round()
        .astype(int)
    )
    for row in range(levels.shape[1]):
        lines.append("  ".join("".join(shades[level] for level in picture[row]) for picture in levels))
    answers = [
        f"{row.argmax()} ({row.max():.1%}), label {label}"
        for row, label in zip(result.outputs[chosen], result.labels[chosen], strict=True)
    ]
    lines.append("  ".join(text.ljust(levels.shape[2]) for text in answers))
    return lines
