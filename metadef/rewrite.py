"""Passes and pattern rules over the graph, the driver that runs them to a fixpoint, and the record of what they did.

A :class:`Pass` is a named value: it says why it exists, can be switched off by its name and tells whether it changed
anything. A :class:`RulePass` applies :class:`Rule` objects: pattern, check (which refuses *with a reason*), rewrite.
Matches, effects and refusals are counted per pass; :class:`PassReport` answers "why did this fusion not fire" and
writes GE's ``fusion_result.json``. Switch files are read in ``metadef.fusion_switch``.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from metadef.error import ContractError, UsageError
from metadef.files import write_text
from metadef.graph import Graph, Node, Tensor
from metadef.kernel import FusedOp
from metadef.op import PortKind

if TYPE_CHECKING:
    from metadef.aipp import AippOp
    from metadef.target import Target

Nodes = tuple[Node, ...]
PassHook = Callable[[str, Graph], None]

GRAPH_FUSION = "graph_fusion"
UB_FUSION = "ub_fusion"
GRAPH_ENGINE = "graph_engine"
"""The groups of passes: GE's two kinds of fusion, and the work of the graph engine itself."""

_MAX_SWEEPS = 200


@dataclass(frozen=True)
class PassOptions:
    """What all passes may be told.

    ``precision``: "fp16" (force_fp16) or "origin". ``disabled``: names of passes to leave out. ``check``: verify the
    graph's invariants after every pass. ``conv``: the algorithm of convolutions that selection will be asked for.
    ``stream_weights``: least bytes of weights that are loaded just before their use (None: none are). ``aipp``: what
    makes images of pictures, a block for each input that takes them.
    """

    precision: str = "fp16"
    disabled: frozenset[str] = frozenset()
    check: bool = False
    conv: str = "direct"
    stream_weights: int | None = None
    aipp: tuple[AippOp, ...] = ()


# -- the record --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Refusal:
    """A pattern that was there and yet was not rewritten."""

    node: str
    reason: str


@dataclass
class PassRecord:
    """What one pass did. ``notes`` are reasons for single nodes, keyed by node name; ``seconds`` is CPU time."""

    name: str
    group: str = GRAPH_ENGINE
    reason: str = ""
    seconds: float = 0.0
    nodes_before: int = 0
    nodes_after: int = 0
    changed: bool = False
    skipped: bool = False
    effect_times: int = 0
    refusals: list[Refusal] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)

    @property
    def match_times(self) -> int:
        """Patterns found: the rewritten and the refused ones."""
        return self.effect_times + len(self.refusals)

    def refuse(self, node: Node, reason: str) -> None:
        self.refusals.append(Refusal(node.name, reason))

    def note(self, node: str, text: str) -> None:
        self.notes[node] = text


@dataclass
class PassReport:
    """The records of a pipeline run, in order. ``unknown_disabled`` are switched-off names that no pass has."""

    graph: str
    passes: list[PassRecord] = field(default_factory=list)
    unknown_disabled: tuple[str, ...] = ()

    def record(self, name: str) -> PassRecord:
        """The record of a pass; where a pass runs twice, the first. Raises KeyError."""
        for item in self.passes:
            if item.name == name:
                return item
        raise KeyError(name)

    @property
    def seconds(self) -> float:
        return sum(item.seconds for item in self.passes)

    def refusals(self) -> list[tuple[str, Refusal]]:
        """(pass name, refusal) of the whole run."""
        return [(item.name, refusal) for item in self.passes for refusal in item.refusals]

    def notes(self) -> dict[str, list[str]]:
        """Node name -> what passes said about it, each line opened by the pass's name."""
        lines: dict[str, list[str]] = {}
        for item in self.passes:
            for node, text in item.notes.items():
                lines.setdefault(node, []).append(f"{item.name}: {text}")
        return lines

    def about(self, node: str) -> list[str]:
        """Notes and refusals of one node, in the order of the passes: the raw material of ``explain``."""
        lines = []
        for item in self.passes:
            if node in item.notes:
                lines.append(f"{item.name}: {item.notes[node]}")
            lines += [f"{item.name} refused: {refusal.reason}" for refusal in item.refusals if refusal.node == node]
        return lines

    def fusion_result(self) -> dict[str, object]:
        """GE's ``fusion_result.json`` (counts are strings there), with our reasons beside it under ``refusals``."""
        result: dict[str, object] = {"session_and_graph_id": "0_0"}
        for group in (GRAPH_FUSION, UB_FUSION):
            table = {}
            for item in self.passes:
                if item.group == group and item.match_times:
                    table[item.name] = {"effect_times": str(item.effect_times), "match_times": str(item.match_times)}
            result[group] = table
        reasons: dict[str, list[dict[str, str]]] = {}
        for name, refusal in self.refusals():
            reasons.setdefault(name, []).append({"node": refusal.node, "reason": refusal.reason})
        result["refusals"] = reasons
        return result

    def write_fusion_result(self, path: str | Path) -> Path:
        """Write :meth:`fusion_result` as JSON. Raises UsageError if the file cannot be written."""
        return write_text(path, json.dumps(self.fusion_result(), indent=2, ensure_ascii=False) + "\n")

    def __str__(self) -> str:
        lines = [f"{'pass':44} {'ms':>8} {'nodes':>11} {'match':>6} {'effect':>6}"]
        for item in self.passes:
            state = "off" if item.skipped else f"{item.nodes_before}->{item.nodes_after}"
            lines.append(
                f"{item.name:44} {item.seconds * 1e3:8.2f} {state:>11} {item.match_times:6} {item.effect_times:6}"
            )
        return "\n".join(lines)


@dataclass
class PassContext:
    """What a pass sees beside the graph: the chip, the options, and the record it writes its statistics into."""

    target: Target
    options: PassOptions
    record: PassRecord


# -- passes and rules --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pass(ABC):
    """A named step over the graph. ``reason`` says what it is good for; ``required`` ones cannot be switched off."""

    name: str
    reason: str
    group: str = GRAPH_ENGINE
    required: bool = False

    @abstractmethod
    def run(self, graph: Graph, context: PassContext) -> bool:
        """Change the graph in place; True if anything changed. The graph is valid before and after."""


class Rule(ABC):
    """One rewriting rule. ``roots`` are the operator types at which :meth:`match` is tried (empty: at every node)."""

    roots: tuple[str, ...] = ()

    @abstractmethod
    def match(self, graph: Graph, node: Node) -> Nodes | None:
        """The nodes the pattern binds, the one that names the match first; None if the pattern is not here."""

    def check(self, graph: Graph, nodes: Nodes, context: PassContext) -> str:
        """Why the rewrite must not happen, as a sentence for the user; "" if it may."""
        return ""

    @abstractmethod
    def rewrite(self, graph: Graph, nodes: Nodes, context: PassContext) -> None:
        """Change the graph. Must take the pattern away, so that the driver comes to rest."""


@dataclass(frozen=True)
class RulePass(Pass):
    """Applies rules, first match first, sweep after sweep until none fires. Refusals are those of the last sweep."""

    rules: tuple[Rule, ...] = ()

    def run(self, graph: Graph, context: PassContext) -> bool:
        changed = False
        for _ in range(_MAX_SWEEPS):
            context.record.refusals.clear()
            if not self._sweep(graph, context):
                return changed
            changed = True
        raise ContractError(
            f"pass '{self.name}' does not come to rest", got=f"{_MAX_SWEEPS} sweeps that all changed the graph"
        )

    def _sweep(self, graph: Graph, context: PassContext) -> bool:
        fired = False
        for node in list(graph.nodes):
            for rule in self.rules:
                if not is_alive(node):
                    break
                if rule.roots and (node.op_type not in rule.roots or node.domain != "ascend"):
                    continue
                nodes = rule.match(graph, node)
                if nodes is None:
                    continue
                if reason := rule.check(graph, nodes, context):
                    context.record.refuse(nodes[0], reason)
                    continue
                rule.rewrite(graph, nodes, context)
                context.record.effect_times += 1
                fired = True
        return fired


def run_passes(
    passes: Sequence[Pass], graph: Graph, target: Target, options: PassOptions, on_pass: PassHook | None = None
) -> PassReport:
    """Run passes in order over ``graph``, which they change, and before it over the graphs nested in it.

    Args:
        on_pass: called as ``on_pass(pass name, graph)`` after each pass that ran.

    Raises:
        UsageError: a required pass is switched off. ContractError: with ``options.check``, a pass broke an
            invariant; its name is in the message. Errors of single passes, such as TargetError.
    """
    required = sorted(item.name for item in passes if item.required and item.name in options.disabled)
    if required:
        hint = "the device cannot run a graph without it"
        raise UsageError(
            f"pass {', '.join(required)} cannot be switched off", got=", ".join(sorted(options.disabled)), hint=hint
        )
    known = {item.name for item in passes}
    report = PassReport(graph.name, unknown_disabled=tuple(sorted(options.disabled - known)))
    for item in passes:
        record = PassRecord(item.name, item.group, item.reason, nodes_before=_size(graph))
        report.passes.append(record)
        record.skipped = item.name in options.disabled
        if not record.skipped:
            start = time.process_time()
            inner_first = reversed(list(graph.graphs()))
            record.changed = any([item.run(each, PassContext(target, options, record)) for each in inner_first])
            record.seconds = time.process_time() - start
            graph.revision += record.changed
            if options.check:
                _verify_after(item, graph)
            if on_pass is not None:
                on_pass(item.name, graph)
        record.nodes_after = _size(graph)
    return report


def _size(graph: Graph) -> int:
    """Nodes of a graph and of all graphs nested in it."""
    return sum(len(each.nodes) for each in graph.graphs())


def _verify_after(item: Pass, graph: Graph) -> None:
    try:
        graph.verify()
    except ContractError as error:
        raise ContractError(f"pass '{item.name}' broke the graph: {error.problems[0].message}") from error


# -- what rules share --------------------------------------------------------------------------------------------------


def is_alive(node: Node) -> bool:
    """Whether the node is still in its graph (a removed node's results have no producer)."""
    return bool(node.outputs) and node.outputs[0].producer is node


def other_readers(graph: Graph, tensor: Tensor, reader: Node) -> str:
    """Why ``reader`` is not the only one that needs ``tensor``, as a sentence; "" if it is."""
    others = [node.name for node in tensor.users if node is not reader]
    if others:
        shown = ", ".join(f"'{name}'" for name in others[:3]) + (" …" if len(others) > 3 else "")
        return f"the result of '{made_by(tensor)}' is also read by {shown}"
    if any(tensor is item for item in graph.outputs):
        return f"the result of '{made_by(tensor)}' is an output of the graph"
    return ""


def made_by(tensor: Tensor) -> str:
    """Name of what a tensor comes from: its node, else its own name."""
    return tensor.producer.name if tensor.producer is not None else tensor.name


def inherit(node: Node, *sources: Node) -> None:
    """Give ``node`` the origins of ``sources`` behind its own, without repetition, and a layer if it has none."""
    names: Iterable[str] = (*node.origins, *(name for source in sources for name in source.origins))
    node.origins = tuple(dict.fromkeys(names))
    if not node.layer:
        node.layer = next((source.layer for source in sources if source.layer), "")


def bypass(graph: Graph, node: Node, tensor: Tensor) -> None:
    """Remove a one-result node; whoever read its result reads ``tensor``."""
    graph.replace_uses(node.output, tensor)
    graph.remove_node(node)


def absorb(graph: Graph, base: Node, op: Node) -> None:
    """Make ``op``, the only reader of ``base``, an epilogue of it; it reads ``base`` as operand 0 or 1.

    The name is GE's concatenation of both; the result keeps the name of the result of ``op``. If ``op`` has a second
    operand, ``base`` moves to the place of ``op``, behind what makes that operand.
    """
    extra = [tensor for tensor in op.inputs if tensor is not base.output]
    operand = None
    if len(op.inputs) > 1 and not extra:
        raise ContractError(f"cannot fuse '{op.name}' into '{base.name}': it reads that result twice")
    if extra:
        operand = _first_free_slot(base)
        graph.set_input(base, operand, extra[0])
        graph.nodes.remove(base)
        graph.nodes.insert(graph.nodes.index(op), base)
    base.fused = (*base.fused, FusedOp(op.op_type, dict(op.attrs), operand))
    if op.fused:
        base.fused = (*base.fused, *_moved(graph, base, op))
    label = op.output.name
    bypass(graph, op, base.output)
    base.output.name = label
    base.name = graph.unique_name(base.name + op.name)
    inherit(base, op)


def _first_free_slot(base: Node) -> int:
    """Where the next epilogue operand goes: behind all declared operands, absent optional ones counted."""
    opdef = base.opdef
    fixed = opdef is not None and all(port.kind is not PortKind.DYNAMIC for port in opdef.inputs)
    return max(len(base.inputs), len(opdef.inputs) if opdef is not None and fixed else 0)


def _moved(graph: Graph, base: Node, op: Node) -> list[FusedOp]:
    """The epilogue of ``op`` with its operands appended to ``base``."""
    moved = []
    for item in op.fused:
        slot = None
        if item.operand is not None:
            slot = _first_free_slot(base)
            graph.set_input(base, slot, op.inputs[item.operand])
        moved.append(FusedOp(item.op_type, item.attrs, slot))
    return moved
