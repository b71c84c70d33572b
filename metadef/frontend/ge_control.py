"""Operators with subgraphs: calls are written in place, If and Case as exclusive branches, While and For as loops.

A branch writes the parent's results itself where it can; where it only passes a value on, a copy stands for it. A loop
keeps what it carries in the parent's results: they are filled before the loop, read inside, and renewed at its end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from metadef.error import Problem
from metadef.schedule import InPlace

if TYPE_CHECKING:
    from metadef.frontend.ge_schedule import Frame, ScheduleWriter

CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
CHOICES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
COUNTED = frozenset({"For"})
LOOPS = frozenset({"While", "StatelessWhile"}) | COUNTED
_COND, _BODY = 0, 1
_START, _DELTA, _FIRST_VALUE = 0, 2, 3
"""Inputs of For: start, limit, delta, then the values it carries; its body gets the counter before them."""


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
        elif op.type in COUNTED:
            self._counted(frame, op)
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
        switch = self.writer.add_step(frame, op, op.name, [given.get(0)], ())
        results = {port: self.writer.new_output(frame, op, port) for port in range(len(op.output_desc))}
        number, self.conditions = self.conditions, self.conditions + 1
        begins = []
        sides = ("then", "else") if op.type.endswith("If") else tuple(map(str, range(len(op.subgraph_name))))
        for side, name in enumerate(op.subgraph_name):
            begins.append(len(self.writer.schedule.steps))
            if name:
                label = f"{op.type.lower()}{number}:{sides[side] if side < len(sides) else side}"
                branch = f"{frame.branch}/{label}" if frame.branch else label
                self._inner(frame, op, side, given=given, wanted=results, branch=branch, shift=1)
        self._join_sides(begins)
        # GE's If counts its sides by truth, the then side first.
        self._jump(switch, *(reversed(begins) if op.type.endswith("If") else begins))

    def _jump(self, step: int, *targets: int) -> None:
        steps = self.writer.schedule.steps
        steps[step] = replace(steps[step], jumps=targets)

    def _join_sides(self, begins: Sequence[int]) -> None:
        """Every side but the last one goes on behind the last one; so do jumps inside that led to its end."""
        steps = self.writer.schedule.steps
        for begin, end in pairwise(begins):
            for step in range(begin, end):
                if end in steps[step].jumps:
                    self._jump(step, *(len(steps) if at == end else at for at in steps[step].jumps))
            if end > begin and not steps[end - 1].jumps:
                self._jump(end - 1, len(steps))

    def _counted(self, frame: Frame, op: Any) -> None:
        """For: as a While whose condition compares a counter that the loop keeps beside what it carries."""
        if len(op.subgraph_name) != 1 or not op.subgraph_name[0]:
            got = str(list(op.subgraph_name))
            self.writer.problems.append(Problem("a For loop needs a body", node=op.name, got=got))
            return
        given = self._given(frame, op)
        carried = {port: self.writer.new_output(frame, op, port) for port in range(len(op.output_desc))}
        kept = {port: given[_FIRST_VALUE + port] for port in carried if _FIRST_VALUE + port in given}
        bounds = [given[slot] for slot in range(_FIRST_VALUE) if slot in given]
        counter = self.writer.new_tensor(f"{op.name}:counter", self._payload(given.get(_START)))
        step = self.writer.add_step(
            frame, op, f"{op.name}:enter", [*kept.values(), *bounds[:1]], [*(carried[port] for port in kept), counter]
        )
        self.writer.schedule.inplace += [InPlace(step, source, carried[port]) for port, source in kept.items()]
        test = self.writer.add_step(frame, op, f"{op.name}:test", [counter, *bounds[1:]], (), 1)
        values = {0: counter, **{port + 1: tensor for port, tensor in carried.items()}}
        body = self._inner(frame, op, 0, given=values, depth=frame.depth + 1)
        renewed = {port: tensor for port, tensor in body.results.items() if tensor != carried.get(port, tensor)}
        last = self.writer.add_step(
            frame,
            op,
            f"{op.name}:next",
            [*renewed.values(), counter, *bounds[_DELTA:]],
            [*(carried[port] for port in renewed), counter],
            1,
        )
        self._jump(last, test)
        self._jump(test, last + 1, test + 1)

    def _payload(self, tensor: int | None) -> int:
        return 0 if tensor is None else self.writer.schedule.tensors[tensor].payload_bytes

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
        begin = len(self.writer.schedule.steps)
        test = self._inner(frame, op, _COND, given=values, depth=depth)
        switch = self.writer.add_step(frame, op, f"{op.name}:test", list(test.results.values()), (), 1)
        body = self._inner(frame, op, _BODY, given=values, depth=depth)
        renewed = {port: tensor for port, tensor in body.results.items() if tensor != carried.get(port, tensor)}
        last = self.writer.add_step(
            frame, op, f"{op.name}:next", list(renewed.values()), [carried[port] for port in renewed], 1
        )
        self._jump(last, begin)
        self._jump(switch, last + 1, switch + 1)
