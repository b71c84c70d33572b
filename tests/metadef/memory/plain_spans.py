"""Live ranges tensor by tensor, as the words of ``live`` have them: what the columns are compared with."""

from __future__ import annotations

from metadef.memory.live import NOWHERE, Reach, Span, StepOrder, joined_reach, loop_bodies, step_order
from metadef.schedule import Group, Schedule, ScheduleTensor, TensorKind


class PlainSpans:
    """Spans of view bases, their views included, by tensor id; for schedules without jumps."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.tensors = {tensor.id: tensor for tensor in schedule.tensors}
        self.order: StepOrder = step_order(schedule.steps)
        self.loops = loop_bodies(schedule.steps)
        self.end = max(len(schedule.steps) - 1, 0)
        parents = {view.tensor: view.base for view in schedule.views}
        self.base = {}
        for tensor in self.tensors:
            root = tensor
            while root in parents:
                root = parents[root]
            self.base[tensor] = root
        parts = {self.base[group.parent] for group in schedule.groups if group.parent >= 0}
        self.spans = {root: self._span(root, root in parts) for root in self.tensors if self.base[root] == root}
        for group in schedule.groups:
            if group.parent >= 0:
                self._extend(group)

    def _span(self, root: int, made_by_parts: bool) -> Span:
        family = [t for t in self.tensors if self.base[t] == root]
        reads = sorted({step.id for step in self.schedule.steps for t in step.reads if t in family})
        writes = sorted({step.id for step in self.schedule.steps for t in step.writes if t in family})
        span = Span(0, max([*reads, *writes], default=0), written=bool(writes))
        if writes and not any(step <= writes[0] for step in reads):
            span.first = writes[0]
        kept = any(self.tensors[t].no_reuse for t in family)
        for tensor in (self.tensors[t] for t in family):
            if kept or self._is_input(tensor):
                span.first = 0
            if kept or tensor.kind is TensorKind.OUTPUT or tensor.id in self.schedule.outputs:
                span.last = self.end
        labels = {self.schedule.steps[step].branch for step in writes}
        if self.tensors[root].branch:
            labels = {self.tensors[root].branch}
        span.labels = () if kept or "" in labels else tuple(sorted(labels))
        touched = sorted({*reads, *writes})
        for start, stop in self.loops:
            inside = [step for step in touched if start <= step <= stop]
            if inside and (span.first < start or span.last > stop or inside[0] in reads):
                span.first, span.last, span.carried = min(span.first, start), max(span.last, stop), True
        span.reach = self._reach(span, reads, touched, kept, made_by_parts and not writes)
        return span

    def _reach(self, span: Span, reads: list[int], touched: list[int], kept: bool, made_by_parts: bool) -> Reach:
        if self.order.linear:
            return NOWHERE
        if kept:
            return self.order.always
        return self.order.reach([*reads, span.last] if made_by_parts else [*touched, span.first, span.last])

    def _is_input(self, tensor: ScheduleTensor) -> bool:
        return tensor.kind in (TensorKind.INPUT, TensorKind.WEIGHT) or tensor.id in self.schedule.inputs

    def _extend(self, group: Group) -> None:
        """A parent nobody writes is written through its members; a member nobody writes through its parent."""
        parent = self.spans[self.base[group.parent]]
        members = [self.spans[self.base[member]] for member in group.members]
        if not parent.written:
            for member in members:
                member.last = max(member.last, parent.last)
                member.reach = joined_reach(member.reach, parent.reach)
            parent.first = min((member.first for member in members), default=0)
            for member in members:
                parent.reach = joined_reach(parent.reach, member.reach)
            parent.labels = ()
        for member in members:
            if not member.written:
                member.first, member.last = parent.first, max(member.last, parent.last)
                member.reach = joined_reach(member.reach, parent.reach)
                parent.last = max(parent.last, member.last)
                parent.reach = joined_reach(parent.reach, member.reach)
