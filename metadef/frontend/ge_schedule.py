"""GE's operators as a Schedule: steps without kernels, tensors with GE's sizes, every relation that the model declares.

References and no-task operators become views and contiguous groups, declared in-place pairs become permissions, edges
between streams become events. Offsets that a build recorded are kept beside, for comparison with our own plan.
Operators with subgraphs are in ``metadef.frontend.ge_control``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from metadef.error import ModelError, Problem
from metadef.frontend.ge_control import CALLS, CHOICES, COUNTED, LOOPS, ControlWriter
from metadef.frontend.ge_ports import PARENT_INDEX, attr_of, data_edges, edges_of, ordered_ops, port_size
from metadef.schedule import Group, InPlace, Schedule, ScheduleTensor, Step, TensorKind, View, Workspace

INPUTS = frozenset({"Data", "RefData", "AippData", "QueueData", "PlaceHolder"})
WEIGHTS = frozenset({"Const", "Constant", "ConstPlaceHolder", "FileConstant", "Variable", "VariableV2", "VarHandleOp"})
SINKS = frozenset({"NetOutput", "End"})
_RESHAPES = frozenset(
    {"Reshape", "Squeeze", "SqueezeV2", "SqueezeV3", "Unsqueeze", "UnsqueezeV2", "UnsqueezeV3", "ExpandDims",
     "Flatten", "FlattenV2"}
)  # fmt: skip
_LOCAL = "DNN_VM_GE_LOCAL"
_POOLS = {0: "HBM", 2: "HBM", 4: "DDR", 0x10: "P2P_HBM", 0x11: "P2P_DDR", 0x8000: "UB", 0x10000: "L1"}
"""Memory types of the runtime (rtMemType_t)."""


@dataclass
class GeSchedule:
    """A schedule and what GE decided: ``offsets`` by tensor id, ``scratch`` by (step, workspace); empty before a build.

    ``attrs`` are the model's own attributes (memory_size, zero_copy_memory_size, soc_version…).
    """

    schedule: Schedule
    offsets: dict[int, int] = field(default_factory=dict)
    scratch: dict[tuple[int, int], int] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass
class Frame:
    """One graph while it is written: where its ports lie, what its parent gave and wants, branch and loop depth.

    ``given`` maps the parent's inputs and ``wanted`` its outputs to tensors; ``targets`` names ports whose result goes
    straight into a wanted tensor; ``results`` are the tensors the sink returned.
    """

    graph: Any
    given: Mapping[int, int] = field(default_factory=dict)
    wanted: Mapping[int, int] = field(default_factory=dict)
    branch: str = ""
    depth: int = 0
    shift: int = 0
    is_root: bool = False
    ports: dict[str, int] = field(default_factory=dict)
    targets: dict[str, int] = field(default_factory=dict)
    results: dict[int, int] = field(default_factory=dict)
    last_step: dict[str, int] = field(default_factory=dict)


def schedule_of_model(model: Any) -> GeSchedule:
    """The schedule of a ``ge.proto.ModelDef``.

    Raises:
        ModelError: no graph, edges from nowhere, cycles, open shapes, missing subgraphs; all of one kind at once.
    """
    if not model.graph or not model.graph[0].op:
        raise ModelError("the model has no operators", got=f"model '{model.name}'", hint="the dump may be cut off")
    return ScheduleWriter(model).write()


class ScheduleWriter:
    """Writes graphs into one schedule; :meth:`emit` is called again for subgraphs."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.graphs = {graph.name: graph for graph in model.graph}
        name = model.name or model.graph[0].name
        self.result = GeSchedule(Schedule(name, str(attr_of(model, "soc_version") or "")))
        self.result.attrs = {key: attr_of(model, key) for key in sorted(model.attr)}
        self.schedule = self.result.schedule
        self.writers: dict[int, list[int]] = {}
        self.records: dict[int, set[int]] = {}
        self.waits: dict[int, set[int]] = {}
        self.events: dict[Any, int] = {}
        self.names: dict[str, int] = {}
        self.sources: dict[int, int] = {}
        self.sink_reads: list[int] = []
        self.problems: list[Problem] = []
        self.open_graphs: list[str] = []
        self.control = ControlWriter(self)

    def write(self) -> GeSchedule:
        self.emit(Frame(self.model.graph[0], is_root=True))
        if self.problems:
            raise ModelError(self.problems)
        self._name_outputs()
        self.schedule.inputs = [tensor for _, tensor in sorted((at, t) for t, at in self.sources.items())]
        self.schedule.steps = [
            replace(
                step,
                waits=tuple(sorted(self.waits.get(step.id, ()))),
                records=tuple(sorted(self.records.get(step.id, ()))),
            )
            for step in self.schedule.steps
        ]
        if not any(self.result.offsets.values()):
            self.result.offsets.clear()
            self.result.scratch.clear()
        return self.result

    def emit(self, frame: Frame) -> None:
        """Write one graph in its order. Raises ModelError for graphs that contain themselves, at once."""
        if frame.graph.name in self.open_graphs:
            raise ModelError(f"graph '{frame.graph.name}' contains itself", got=" -> ".join(self.open_graphs))
        self.open_graphs.append(frame.graph.name)
        self._emit_ops(frame, ordered_ops(frame.graph))
        self.open_graphs.pop()

    def _emit_ops(self, frame: Frame, ops: Sequence[Any]) -> None:
        self._aim(frame, ops)
        for op in ops:
            if op.type in INPUTS:
                self._input(frame, op)
            elif op.type in WEIGHTS:
                for port in range(len(op.output_desc)):
                    self.new_output(frame, op, port, TensorKind.WEIGHT)
            elif op.type in SINKS:
                self._sink(frame, op)
            elif op.type in COUNTED or (op.subgraph_name and op.type in CALLS | CHOICES | LOOPS):
                self.control.write(frame, op)
            else:
                self._operator(frame, op)

    # -- tensors --------------------------------------------------------------------------------------------------

    def new_output(self, frame: Frame, op: Any, port: int, kind: TensorKind = TensorKind.FEATURE) -> int:
        """The tensor of an operator's output: a new one, or the one its parent wants there."""
        label = op.name if len(op.output_desc) == 1 else f"{op.name}:{port}"
        if port >= len(op.output_desc):
            self.problems.append(Problem(f"{op.type} has no output {port}", node=op.name))
            return self.new_tensor(label, 0, kind)
        try:
            size = port_size(op.output_desc[port], label)
        except ModelError as error:
            self.problems += error.problems
            return self.new_tensor(label, 0, kind)
        key = f"{op.name}:{port}"
        target = frame.targets.get(key)
        if target is None:
            pools = attr_of(op, "_output_memory_type") or []
            number = int(pools[port]) if port < len(pools) else 0
            pool = _POOLS.get(number, f"memory{number}")
            target = self.new_tensor(label, size.payload_bytes, kind, size.slot_bytes, size.desc, pool)
            if port < len(op.output_i):
                self.result.offsets[target] = op.output_i[port]
        else:
            known = self.schedule.tensors[target]
            if size.payload_bytes > known.payload_bytes:
                self.schedule.tensors[target] = replace(
                    known, payload_bytes=size.payload_bytes, slot_bytes=size.slot_bytes, desc=size.desc
                )
        frame.ports[key] = target
        return target

    def new_tensor(
        self,
        name: str,
        payload_bytes: int,
        kind: TensorKind = TensorKind.FEATURE,
        slot: int = 0,
        desc: Any = None,
        pool: str = "HBM",
    ) -> int:
        """A tensor under a name that no other has."""
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        tensors = self.schedule.tensors
        label = f"{name}#{count}" if count else name
        tensors.append(ScheduleTensor(len(tensors), label, payload_bytes, kind, desc, slot_bytes=slot, pool=pool))
        return tensors[-1].id

    def operands(self, frame: Frame, op: Any) -> list[int | None]:
        """Tensors of an operator's data inputs; a port that does not exist is noted as a problem."""
        found: list[int | None] = []
        for edge in data_edges(op):
            tensor = None if edge is None else frame.ports.get(f"{edge.source}:{edge.index}")
            if edge is not None and tensor is None:
                text = f"reads output {edge.index} of '{edge.source}', which has no such output"
                self.problems.append(Problem(text, node=op.name))
            found.append(tensor)
        return found

    # -- steps ----------------------------------------------------------------------------------------------------

    def add_step(
        self, frame: Frame, op: Any, name: str, reads: Sequence[int | None], writes: Sequence[int], depth: int = 0
    ) -> int:
        """A step of ``op``, ordered by events behind writers and control inputs on other streams."""
        step = len(self.schedule.steps)
        stream = max(op.stream_id, 0)
        origins = tuple(
            item.decode("utf-8", "replace") for item in attr_of(op, "_datadump_original_op_names") or () if item
        )
        self.schedule.steps.append(
            Step(step, name, tuple(reads), tuple(writes), origins=origins, stream=stream, branch=frame.branch,
                 loop_depth=frame.depth + depth)
        )  # fmt: skip
        before = {writer for tensor in reads if tensor is not None for writer in self.writers.get(tensor, ())}
        for edge in edges_of(op):
            if edge is not None and edge.source in frame.last_step:
                before.add(frame.last_step[edge.source])
        for earlier in before:
            if self.schedule.steps[earlier].stream != stream:
                event = self.events.setdefault(("step", earlier), len(self.events))
                self.records.setdefault(earlier, set()).add(event)
                self.waits.setdefault(step, set()).add(event)
        for tensor in writes:
            self.writers.setdefault(tensor, []).append(step)
        frame.last_step[op.name] = step
        return step

    def _operator(self, frame: Frame, op: Any) -> None:
        reads = self.operands(frame, op)
        self._note_weights(op, reads)
        if self._is_reshape(frame, op, reads):
            return
        writes = [self.new_output(frame, op, port) for port in range(len(op.output_desc))]
        if not self._is_free(op, reads, writes):
            step = self.add_step(frame, op, op.name, reads, writes)
            sizes = [size for size in op.workspace_bytes if size > 0]
            if sizes:
                scratch = tuple(Workspace(size) for size in sizes)
                self.schedule.steps[step] = replace(self.schedule.steps[step], workspaces=scratch)
                places = [at for at, size in zip(op.workspace, op.workspace_bytes) if size > 0]
                self.result.scratch.update(((step, number), at) for number, at in enumerate(places))
            self._relate(op, step, reads, writes)
            self._events(op, step)

    def _note_weights(self, op: Any, reads: Sequence[int | None]) -> None:
        """Where weights lie is written at their readers, one offset for every operand that is there."""
        present = [tensor for tensor in reads if tensor is not None]
        if len(op.input_i) != len(present):
            return
        for tensor, offset in zip(present, op.input_i):
            if self.schedule.tensors[tensor].kind is TensorKind.WEIGHT:
                self.result.offsets[tensor] = offset

    def _is_reshape(self, frame: Frame, op: Any, reads: Sequence[int | None]) -> bool:
        """Whether the operator only renames its operand's bytes and takes no task; then it becomes a view."""
        library = str(attr_of(op, "_ge_attr_op_kernel_lib_name") or "")
        if op.type not in _RESHAPES or not library.startswith(_LOCAL) or not reads or reads[0] is None:
            return False
        if f"{op.name}:0" in frame.targets:
            return False
        tensor = self.new_output(frame, op, 0)
        self.schedule.views.append(View(tensor, reads[0]))
        self.writers[tensor] = self.writers.get(reads[0], [])
        return True

    def _is_free(self, op: Any, reads: Sequence[int | None], writes: Sequence[int]) -> bool:
        """A join or split without a task: its parts lie inside the whole."""
        if not attr_of(op, "_no_task"):
            return False
        parts = [tensor for tensor in reads if tensor is not None]
        if attr_of(op, "_nopadding_continuous_input") and len(writes) == 1:
            self._group(writes[0], parts, padded=False)
            self.writers[writes[0]] = [step for tensor in parts for step in self.writers.get(tensor, ())]
            return True
        if attr_of(op, "_nopadding_continuous_output") and parts:
            self._group(parts[0], writes, padded=False)
            self.writers.update((tensor, self.writers.get(parts[0], [])) for tensor in writes)
            return True
        return False

    def _group(self, parent: int, members: Sequence[int], padded: bool) -> None:
        """A contiguous group; without padding the members give up their own slots."""
        taken = {member for group in self.schedule.groups for member in group.members}
        tensors = self.schedule.tensors
        if any(tensors[t].kind is not TensorKind.FEATURE or t in taken for t in members) or not members:
            return
        if not padded:
            for member in members:
                tensors[member] = replace(tensors[member], slot_bytes=0)
        self.schedule.groups.append(Group(parent, tuple(members), padded))

    def _relate(self, op: Any, step: int, reads: Sequence[int | None], writes: Sequence[int]) -> None:
        """References, in-place permissions and contiguous ports of an operator with a task."""
        tensors = self.schedule.tensors
        for port, tensor in enumerate(writes):
            source = _reference(op, port, reads)
            if source is not None and tensors[tensor].payload_bytes <= tensors[source].payload_bytes:
                self.schedule.views.append(View(tensor, source))
        allowed = attr_of(op, "_inplace_support_input_index")
        for port, slot in enumerate([allowed] if isinstance(allowed, int) else allowed or ()):
            source = reads[slot] if 0 <= slot < len(reads) else None
            if source is not None and port < len(writes):
                self.schedule.inplace.append(InPlace(step, source, writes[port]))
        if attr_of(op, "continuous_input"):
            self._group(-1, [tensor for tensor in reads if tensor is not None], padded=True)
        if attr_of(op, "continuous_output"):
            self._group(-1, writes, padded=True)

    def _events(self, op: Any, step: int) -> None:
        event = attr_of(op, "event_id")
        if event is None or op.type not in ("Send", "Recv"):
            return
        known = ("event", event) in self.events
        if op.type == "Send":
            number = self.events.setdefault(("event", event), len(self.events))
            self.records.setdefault(step, set()).add(number)
        elif known:
            self.waits.setdefault(step, set()).add(self.events["event", event])

    # -- borders --------------------------------------------------------------------------------------------------

    def _input(self, frame: Frame, op: Any) -> None:
        index = attr_of(op, PARENT_INDEX)
        if not frame.is_root:
            index = int(attr_of(op, "index") or 0) + frame.shift if index is None else int(index)
            if index not in frame.given:
                self.problems.append(Problem(f"stands for input {index} of the parent, which has none", node=op.name))
                self.new_output(frame, op, 0)
            else:
                frame.ports[f"{op.name}:0"] = frame.given[index]
            return
        if op.type == "PlaceHolder" and attr_of(op, "parentOpType") in WEIGHTS:
            self.new_output(frame, op, 0, TensorKind.WEIGHT)
            return
        tensor = self.new_output(frame, op, 0, TensorKind.INPUT)
        self.sources[tensor] = int(attr_of(op, "index") or 0) * len(self.model.graph[0].op) + len(self.sources)

    def _aim(self, frame: Frame, ops: Sequence[Any]) -> None:
        """Let operators write straight into what the parent wants, where nothing else claims their result."""
        by_name = {op.name: op for op in ops}
        taken: set[int] = set()
        for sink in (op for op in ops if op.type in SINKS):
            for slot, edge in enumerate(data_edges(sink)):
                wanted = frame.wanted.get(_parent_output(sink, slot))
                if edge is None or wanted is None or wanted in taken:
                    continue
                key = f"{edge.source}:{edge.index}"
                if key not in frame.targets and _owns_result(by_name[edge.source]):
                    frame.targets[key] = wanted
                    taken.add(wanted)

    def _sink(self, frame: Frame, op: Any) -> None:
        reads = self.operands(frame, op)
        if frame.is_root:
            self.add_step(frame, op, op.name, reads, ())
            self.sink_reads += [tensor for tensor in reads if tensor is not None]
            return
        copies = []
        for slot, tensor in enumerate(reads):
            output = _parent_output(op, slot)
            if tensor is None:
                continue
            wanted = frame.wanted.get(output, tensor)
            frame.results[output] = wanted
            if wanted != tensor:
                copies.append((tensor, wanted))
        if copies:
            self.add_step(frame, op, f"{frame.graph.name}/{op.name}", *zip(*copies))  # type: ignore[arg-type]

    def _name_outputs(self) -> None:
        """Graph outputs. One that GE placed below the inputs is no zero-copy buffer: it stays a feature map."""
        places = self.result.offsets
        floor = min((places.get(tensor, 0) for tensor in self.sources), default=0)
        for tensor in dict.fromkeys(self.sink_reads):
            item = self.schedule.tensors[tensor]
            inside = tensor in places and floor > places[tensor]
            if item.kind is TensorKind.FEATURE and not inside:
                self.schedule.tensors[tensor] = replace(item, kind=TensorKind.OUTPUT)
                self.schedule.outputs.append(tensor)


def _parent_output(sink: Any, slot: int) -> int:
    found = attr_of(sink.input_desc[slot], PARENT_INDEX) if slot < len(sink.input_desc) else None
    return slot if found is None else int(found)


def _owns_result(op: Any) -> bool:
    """Whether an operator's results are its own memory: no parent's value, no weight, no reference, no group."""
    if op.type in INPUTS | WEIGHTS | SINKS or op.type in _RESHAPES or attr_of(op, "_no_task"):
        return False
    if attr_of(op, "continuous_output"):
        return False
    return all(not desc.reuse_input and "ref_port_index" not in desc.attr for desc in op.output_desc)


def _reference(op: Any, port: int, reads: Sequence[int | None]) -> int | None:
    """The operand whose memory an output must share, if the model says so."""
    desc = op.output_desc[port]
    slots = attr_of(desc, "ref_port_index") or []
    if desc.reuse_input:
        slots = [desc.reuse_input_index]
    slot = int(slots[0]) if slots else -1
    return reads[slot] if 0 <= slot < len(reads) else None
