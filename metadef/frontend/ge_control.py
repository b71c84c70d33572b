"""Operators with subgraphs: calls are written in place, If and Case as exclusive branches, While as a loop body.

A branch writes the parent's results itself where it can; where it only passes a value on, a copy stands for it. A loop
keeps what it carries in the parent's results: they are filled before the loop, read inside, and renewed at its end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from metadef.error import Problem
from metadef.schedule import InPlace

if TYPE_CHECKING:
    from metadef.frontend.ge_schedule import Frame, ScheduleWriter

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CHOICES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
LOOPS = frozenset({"While", "StatelessWhile"})
_COND, _BODY = 0, 1


class ControlWriter:
    """Writes the subgraphs of one writer's operators."""

    def __init__(self, writer: ScheduleWriter) -> None:
        self.writer = writer
        self.conditions = 0

    def write(self, frame: Frame, op: Any) -> None:
        """One operator of :data:`CALLS`, :data:`CHOICES` or :data:`LOOPS` with all its subgraphs."""
        missing = [name for name in op.subgraph_name if name and name not in self.writer.graphs]
        if missing:
            known = ", ".join(self.writer.graphs)
            problem = Problem("subgraphs are missing", node=op.name, expected=", ".join(missing), got=known)
            self.writer.problems.append(problem)
            for port in range(len(op.output_desc)):
                self.writer.new_output(frame, op, port)
        elif op.type in CALLS:
            self._call(frame, op)
        elif op.type in CHOICES:
            self._choice(frame, op)
        else:
            self._loop(frame, op)

    def _inner(self, frame: Frame, op: Any, subgraph: int, **fields: Any) -> Frame:
        """The frame of a subgraph, written."""
        inner = type(frame)(
            self.writer.graphs[op.subgraph_name[subgraph]],
            **{"branch": frame.branch, "depth": frame.depth, **fields},
        )
        self.writer.emit(inner)
        return inner

    def _given(self, frame: Frame, op: Any) -> dict[int, int]:
        reads = self.writer.operands(frame, op)
        return {slot: tensor for slot, tensor in enumerate(reads) if tensor is not None}

    def _call(self, frame: Frame, op: Any) -> None:
        ports = [f"{op.name}:{port}" for port in range(len(op.output_desc))]
        wanted = {port: frame.targets[key] for port, key in enumerate(ports) if key in frame.targets}
        inner = self._inner(frame, op, 0, given=self._given(frame, op), wanted=wanted)
        for port, key in enumerate(ports):
            if port in inner.results:
                frame.ports[key] = inner.results[port]
            else:
                self.writer.problems.append(Problem(f"subgraph returns no output {port}", node=op.name))

    def _choice(self, frame: Frame, op: Any) -> None:
        given = self._given(frame, op)
        self.writer.add_step(frame, op, op.name, [given.get(0)], ())
        results = {port: self.writer.new_output(frame, op, port) for port in range(len(op.output_desc))}
        number, self.conditions = self.conditions, self.conditions + 1
        sides = ("then", "else") if op.type.endswith("If") else tuple(map(str, range(len(op.subgraph_name))))
        for side, name in enumerate(op.subgraph_name):
            if name:
                label = f"{op.type.lower()}{number}:{sides[side] if side < len(sides) else side}"
                branch = f"{frame.branch}/{label}" if frame.branch else label
                self._inner(frame, op, side, given=given, wanted=results, branch=branch, shift=1)

    def _loop(self, frame: Frame, op: Any) -> None:
        if len(op.subgraph_name) != 2 or not all(op.subgraph_name):
            got = str(list(op.subgraph_name))
            self.writer.problems.append(Problem("a loop needs a condition and a body", node=op.name, got=got))
            return
        given = self._given(frame, op)
        carried = {port: self.writer.new_output(frame, op, port) for port in range(len(op.output_desc))}
        kept = {port: given[port] for port in carried if port in given}
        step = self.writer.add_step(
            frame, op, f"{op.name}:enter", list(kept.values()), [carried[port] for port in kept]
        )
        self.writer.schedule.inplace += [InPlace(step, source, carried[port]) for port, source in kept.items()]
        depth = frame.depth + 1
        values = {**given, **carried}
        test = self._inner(frame, op, _COND, given=values, depth=depth)
        self.writer.add_step(frame, op, f"{op.name}:test", list(test.results.values()), (), 1)
        body = self._inner(frame, op, _BODY, given=values, depth=depth)
        renewed = {port: tensor for port, tensor in body.results.items() if tensor != carried.get(port, tensor)}
        self.writer.add_step(
            frame, op, f"{op.name}:next", list(renewed.values()), [carried[port] for port in renewed], 1
        )
