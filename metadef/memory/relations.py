"""Exact search for small pools with every kind of constraint: decide, pair by pair, who lies below whom.

At a node some pairs of bodies are decided (below, above, or in place of each other); the least offsets that obey
these decisions follow by propagation. A pair that still overlaps is the next decision; a placement without overlap is
a solution. Proved answers come from exhausting the tree. No lifetimes are looked at beyond the conflicts, so
branches, streams, groups, alignments, residues and pins are all exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from metadef.memory.body_table import BodySet
from metadef.memory.pairs import LegalPair
from metadef.memory.problem import Problem

Edges = list[list[tuple[int, int]]]


@dataclass
class Answer:
    """Offsets below the given limit (None: none found), the in-place pairs used, and whether the tree was exhausted."""

    offsets: list[int] | None = None
    taken: list[LegalPair] = field(default_factory=list)
    exhausted: bool = False


@dataclass(frozen=True)
class _Conflict:
    """Offset ``i`` - offset ``j`` may not lie between ``low`` and ``high``, but on ``shared`` (in-place distances)."""

    i: int
    j: int
    low: int
    high: int
    shared: tuple[tuple[int, LegalPair], ...] = ()


@dataclass
class _Node:
    offsets: list[int]
    edges: Edges
    peak: int
    taken: tuple[LegalPair, ...] = ()


def solve_relations(
    problem: Problem, joined: BodySet, pairs: Sequence[LegalPair], limit: int, goal: int, nodes: int
) -> Answer:
    """Search for a placement with a peak below ``limit`` bytes; stop at ``goal`` bytes or after ``nodes`` nodes.

    ``problem`` holds the bodies of ``joined``, before any in-place pair is joined.
    """
    conflicts = _conflicts(problem, joined, pairs)
    answer = Answer()
    least = [body.pinned if body.pinned is not None else body.up(0) for body in problem.bodies]
    root = _Node(least, [[] for _ in least], problem.peak(least))
    stack = [root] if root.peak < limit else []
    while stack:
        node = stack.pop()
        if node.peak >= limit:
            continue
        nodes -= 1
        if nodes < 0:
            return answer
        worst = _worst_overlap(problem, conflicts, node)
        if worst is None:
            answer.offsets, answer.taken, limit = node.offsets, list(node.taken), node.peak
            if limit <= goal:
                return answer
            continue
        children = [child for child in _children(problem, node, worst, limit) if child is not None]
        children.sort(key=lambda child: (-child.peak, len(child.taken)))
        stack.extend(children)
    answer.exhausted = True
    return answer


def _conflicts(problem: Problem, joined: BodySet, pairs: Sequence[LegalPair]) -> list[_Conflict]:
    shared: dict[tuple[int, int, int, int], list[tuple[int, LegalPair]]] = {}
    for pair in pairs:
        i, j = joined.of[pair.write], joined.of[pair.read]
        top, bottom = problem.bodies[i], problem.bodies[j]
        at_write, at_read = top.places[pair.write], bottom.places[pair.read]
        for new in top.rects:
            for old in bottom.rects:
                if (new.rel, old.rel) == (at_write, at_read) and old.last == pair.step == new.first:
                    key = (i, j, old.rel - new.rel - new.size, old.rel + old.size - new.rel)
                    shared.setdefault(key, []).append((at_read - at_write, pair))
    found = {}
    for i, entries in enumerate(problem.near):
        for j, low, high in entries:
            key, mirrored = (i, j, low, high), (j, i, -high, -low)
            if key in shared or (i > j and mirrored not in shared):
                found[key] = _Conflict(i, j, low, high, tuple(shared.get(key, ())))
    return list(found.values())


def _worst_overlap(problem: Problem, conflicts: list[_Conflict], node: _Node) -> _Conflict | None:
    """The violated conflict between the largest bodies."""
    worst, size = None, -1
    offsets, extents = node.offsets, problem.extents
    for conflict in conflicts:
        distance = offsets[conflict.i] - offsets[conflict.j]
        if not conflict.low < distance < conflict.high:
            continue
        if any(distance == shared and pair in node.taken for shared, pair in conflict.shared):
            continue
        weight = min(extents[conflict.i], extents[conflict.j])
        if weight > size:
            worst, size = conflict, weight
    return worst


def _children(problem: Problem, node: _Node, conflict: _Conflict, limit: int) -> list[_Node | None]:
    i, j = conflict.i, conflict.j
    choices = [
        _decided(problem, node, [(j, i, conflict.high)], limit),
        _decided(problem, node, [(i, j, -conflict.low)], limit),
    ]
    for distance, pair in conflict.shared:
        choices.append(_decided(problem, node, [(j, i, distance), (i, j, -distance)], limit, (pair,)))
    return choices


def _decided(
    problem: Problem, node: _Node, added: list[tuple[int, int, int]], limit: int, pairs: tuple[LegalPair, ...] = ()
) -> _Node | None:
    """The node with more edges (source, target, bytes): target lies at least so far above source. None if it fails."""
    edges = list(node.edges)
    for source, target, weight in added:
        edges[source] = [*edges[source], (target, weight)]
    offsets = list(node.offsets)
    bodies, extents = problem.bodies, problem.extents
    queue = [source for source, _, _ in added]
    while queue:
        source = queue.pop()
        start = offsets[source]
        for target, weight in edges[source]:
            if start + weight <= offsets[target]:
                continue
            body = bodies[target]
            if body.pinned is not None:
                return None
            offsets[target] = body.up(start + weight)
            if offsets[target] + extents[target] >= limit:
                return None
            queue.append(target)
    return _Node(offsets, edges, problem.peak(offsets), node.taken + pairs)
