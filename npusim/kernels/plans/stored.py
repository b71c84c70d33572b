"""What was chosen when a program was first planned on this computer, kept for later sessions.

The algorithm of each task is chosen by a model of the machine (``npusim.kernels.plans.algorithm``), and with it the
layout its weights are packed in; a task's kernels follow from both. All of it lies in one file beside those kernels,
by a digest of the program, the options and the planners (the folder is that of all that kernels depend on): a later
session takes it from there, links all kernels in one go and derives only addresses. Damaged files count as absent, and
where none can be written every session chooses anew. The file is this computer's own: nothing of it goes into the
program or the model file.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from metadef.files import read_sealed, write_sealed
from metadef.program import Program
from metadef.program_text import program_to_json
from npusim.kernels import store
from npusim.kernels.plans.site import PlanOptions


class StoredPlan:
    """Algorithm by task id, and the names of all kernels of a program. ``is_stored``: it was read, not chosen now."""

    def __init__(self, path: Path, algorithms: dict[int, str], kernels: tuple[str, ...], is_stored: bool) -> None:
        self.path = path
        self.algorithms = algorithms
        self.kernels = kernels
        self.is_stored = is_stored

    @staticmethod
    def of(program: Program, options: PlanOptions) -> StoredPlan:
        """The plan that was stored for a program under these options; an empty one where there is none."""
        text = json.dumps(program_to_json(program), separators=(",", ":"), default=repr)
        key = hashlib.sha256(f"{_planners_key()} {options} {text}".encode()).hexdigest()[:24]
        path = store.cache_directory() / f"plan-{key}.json"
        body = read_sealed(path)
        if body is None:
            return StoredPlan(path, {}, (), False)
        kept = json.loads(body)
        algorithms = {int(task): name for task, name in kept["algorithms"].items()}
        return StoredPlan(path, algorithms, tuple(kept["kernels"]), True)

    def algorithm(self, task: int, choose: Callable[[], str]) -> str:
        """The stored algorithm of a task, or what ``choose`` says, which is then remembered."""
        if task not in self.algorithms:
            self.algorithms[task] = choose()
        return self.algorithms[task]

    def save(self, kernels: set[str]) -> None:
        """Keep the choices of a program that was planned for the first time, with the kernels it asked for."""
        if not self.is_stored:
            kept = {"algorithms": self.algorithms, "kernels": sorted(kernels)}
            write_sealed(self.path, json.dumps(kept).encode())


@functools.cache
def _planners_key() -> str:
    """Hash of the planners' sources, which the store's key leaves out."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
