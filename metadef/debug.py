"""Looking into a compilation: a text per pass on disk, typed differences of two graphs, the pass that breaks a model.

:class:`SnapshotWriter` hangs on ``on_pass`` and numbers its files as GE does. :func:`diff_graphs` says what an edit
was, not only that lines differ. :func:`bisect_passes` finds the first pass after which a predicate no longer holds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from metadef.error import UsageError
from metadef.files import write_text
from metadef.graph import Graph, Node
from metadef.passes import PIPELINE, Pass, PassOptions
from metadef.rewrite import run_passes
from metadef.text import fused_types, print_graph

if TYPE_CHECKING:
    from metadef.target import Target


class SnapshotWriter:
    """Writes ``ge_readable_<8 digits>_graph_<name>_<stage>.txt`` into a folder; sorting by name gives the order.

    Pass it as ``on_pass``. A stage that left the graph's revision as it was is skipped unless ``every`` is set.
    """

    def __init__(self, folder: str | Path, *, every: bool = False) -> None:
        self.folder = Path(folder)
        self.files: list[Path] = []
        self._every = every
        self._count = 0
        self._last: tuple[int, int] | None = None

    def __call__(self, stage: str, graph: Graph) -> None:
        """Raises UsageError if the folder cannot be written."""
        state = (id(graph), graph.revision)
        if self._every or state != self._last:
            label = re.sub(r"[^\w.-]+", "_", f"graph_{graph.name}_{stage}")
            self.files.append(
                write_text(self.folder / f"ge_readable_{self._count:08d}_{label}.txt", print_graph(graph))
            )
        self._last = state
        self._count += 1


# -- differences -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Edit:
    """One difference. ``kind``: added, removed, fused (into ``after``) or changed; ``field`` says what changed."""

    kind: str
    node: str
    field: str = ""
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if self.kind == "changed":
            return f"~ {self.node}: {self.field} {self.before} -> {self.after}"
        sign = {"added": "+", "removed": "-", "fused": ">"}[self.kind]
        detail = f" into {self.after}" if self.kind == "fused" else f": {self.after or self.before}"
        return f"{sign} {self.node}{detail}"


def diff_graphs(before: Graph, after: Graph) -> list[Edit]:
    """Edits that lead from one graph to the other: nodes are matched by name, then by the source nodes they stand for.

    Outputs of the graph are compared by their public names.
    """
    old, new = {node.name: node for node in before.nodes}, {node.name: node for node in after.nodes}
    edits = [Edit("removed", name, before=node.op_type) for name, node in old.items() if name not in new]
    heirs = _heirs(after)
    for index, edit in enumerate(edits):
        node = old[edit.node]
        heir = next((heirs[origin] for origin in node.origins or (node.name,) if origin in heirs), None)
        if heir is not None:
            edits[index] = Edit("fused", edit.node, after=heir)
    edits += [Edit("added", name, after=node.op_type) for name, node in new.items() if name not in old]
    for name, node in old.items():
        if name in new:
            edits += _changes(node, new[name])
    results = dict(zip(after.output_names, after.outputs))
    for name, there in zip(before.output_names, before.outputs):
        here = results.get(name)
        if here is None or str(here.desc) != str(there.desc):
            edits.append(Edit("changed", name, "graph output", str(there.desc), str(here.desc) if here else "absent"))
    return edits


def _heirs(graph: Graph) -> dict[str, str]:
    """Source node -> the first node that stands for it."""
    heirs: dict[str, str] = {}
    for node in graph.nodes:
        for origin in node.origins:
            heirs.setdefault(origin, node.name)
    return heirs


def _changes(before: Node, after: Node) -> list[Edit]:
    pairs = {
        "type": (before.op_type, after.op_type),
        "operands": (_operands(before), _operands(after)),
        "results": (_descs(before), _descs(after)),
        "epilogue": (fused_types(before.fused), fused_types(after.fused)),
        "engine": (_engine(before), _engine(after)),
        "origins": (", ".join(before.origins), ", ".join(after.origins)),
    }
    edits = [Edit("changed", before.name, field, a or "none", b or "none") for field, (a, b) in pairs.items() if a != b]
    for name in {**before.attrs, **after.attrs}:
        a, b = before.attrs.get(name, "absent"), after.attrs.get(name, "absent")
        if str(a) != str(b):
            edits.append(Edit("changed", before.name, f"attribute {name}", str(a), str(b)))
    return edits


def _operands(node: Node) -> str:
    return ", ".join("_" if tensor is None else f"{tensor.name} {tensor.desc}" for tensor in node.inputs)


def _descs(node: Node) -> str:
    return ", ".join(str(tensor.desc) for tensor in node.outputs)


def _engine(node: Node) -> str:
    return node.engine.value if node.engine is not None else ""


# -- bisection ---------------------------------------------------------------------------------------------------------


def bisect_passes(
    make_graph: Callable[[], Graph],
    predicate: Callable[[Graph], bool],
    target: Target,
    options: PassOptions | None = None,
    passes: Sequence[Pass] = PIPELINE,
) -> str | None:
    """The name of the first pass after which ``predicate(graph)`` is false; None if it holds after the whole pipeline.

    Each probe makes a fresh graph and runs a prefix of the passes, so it takes about log2(passes) compilations. The
    predicate is taken to stay false once it is.

    Args:
        make_graph: a new, unchanged graph at every call.
        predicate: true for a good graph, such as "its outputs agree with the reference".

    Raises:
        UsageError: the predicate is false for the graph before any pass.
    """
    options = options or PassOptions()
    chosen = [item for item in passes if item.name not in options.disabled]

    def good(count: int) -> bool:
        graph = make_graph()
        run_passes(chosen[:count], graph, target, options)
        return predicate(graph)

    if not good(0):
        raise UsageError(
            "the predicate is false before any pass has run",
            expected="true for the unchanged graph",
            hint="raise --limit, which single precision alone misses; or look at model, inputs or predicate",
        )
    low, high = 0, len(chosen)
    if good(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        if good(middle):
            low = middle
        else:
            high = middle
    return chosen[high - 1].name
