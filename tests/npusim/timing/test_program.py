"""Timing of whole programs: causes, L2 along the graph, streams, host tasks, timelines."""

from dataclasses import replace

import pytest

from metadef.dtype import DType
from metadef.format import TensorDesc
from metadef.kernel import Engine, Kernel
from metadef.program import Binding, Operand, Program, Region, Task
from metadef.target import load_target
from npusim.profile import CAUSES
from npusim.timing import executed_tasks, memory_state, task_timeline, time_program
from npusim.timing.tasks import shared_out
from tests.metadef.cost.samples import vector_kernel

B3, P3 = load_target("Ascend910B3"), load_target("Ascend310P3")
ELEMENTS = 1 << 18
DESC = TensorDesc((ELEMENTS,), DType.FLOAT16)


def _operand(index, residue=0):
    size = DESC.payload_bytes
    return Operand(index, f"t{index}", Region.ARENA, index * 2 * size + residue, size, DESC)


def _chain(count, residue=0):
    kernel = vector_kernel("Relu", ELEMENTS, cores=8, units_per_tile=256)
    tasks = [
        Task(
            index, f"relu{index}", kernel, (_operand(index, residue),), (_operand(index + 1, residue),), origins=("r",)
        )
        for index in range(count)
    ]
    first = tasks[0].inputs[0]
    return Program("chain", "Ascend910B3", tasks, inputs=[Binding("x", first)])


@pytest.mark.parametrize("target", [B3, P3], ids=["910B3", "310P3"])
def test_causes_add_up_and_are_known(target):
    profile = time_program(_chain(4), target)
    for row in profile.tasks:
        assert sum(row.causes.values()) == row.cycles
        assert set(row.causes) <= set(CAUSES)
        assert row.bound_by.split(":")[0] in CAUSES
        assert row.bytes == {"GM->UB": DESC.payload_bytes, "UB->GM": DESC.payload_bytes}
        assert row.energy_pj > 0
    assert profile.cycles == sum(row.cycles for row in profile.tasks)


def test_l2_is_carried_along_the_graph():
    rows = time_program(_chain(3), B3).tasks
    assert rows[0].hbm_read_bytes == DESC.payload_bytes, "the host wrote the input to memory"
    assert [row.hbm_read_bytes for row in rows[1:]] == [0, 0]
    assert rows[0].cycles > rows[1].cycles == rows[2].cycles


def test_operands_off_the_line_cost_more():
    aligned, off, odd = (time_program(_chain(2, residue), B3) for residue in (0, 64, 2))
    assert aligned.cycles < off.cycles < odd.cycles
    assert all("misalignment" not in row.causes for row in aligned.tasks)
    assert all(row.causes["misalignment"] > 0 for row in off.tasks)


def test_trace_chooses_the_tasks():
    profile = time_program(_chain(4), B3, trace=[2, 0])
    assert [row.task for row in profile.tasks] == [2, 0]


def test_streams_overlap_and_events_order():
    program = _chain(2)
    second = replace(program.tasks[1], stream=1)
    program.tasks[1] = second
    together = time_program(program, B3)
    assert together.tasks[1].start_cycles == 0
    program.tasks[0] = replace(program.tasks[0], records=(7,))
    program.tasks[1] = replace(second, waits=(7,))
    ordered = time_program(program, B3)
    assert ordered.tasks[1].start_cycles == ordered.tasks[0].cycles


def test_host_tasks_have_no_pipes():
    program = _chain(2)
    kernel = Kernel("NonZero", Engine.HOST_CPU, (DESC,), (DESC,))
    program.tasks[1] = replace(program.tasks[1], kernel=kernel)
    row = time_program(program, B3).tasks[1]
    assert row.pipes == {} and row.causes == {"launch": row.cycles}


def test_protocols_change_only_the_launch():
    graph, loop = (time_program(_chain(2), B3, protocol=name) for name in ("graph", "loop"))
    for left, right in zip(graph.tasks, loop.tasks):
        assert left.cycles - left.causes["launch"] == right.cycles - right.causes["launch"]
        assert left.causes["launch"] > right.causes["launch"]


def test_timeline_matches_the_run():
    program = _chain(2)
    row = time_program(program, B3).tasks[1]
    timeline = task_timeline(program.tasks[1], B3)
    assert timeline.cycles == row.cycles and timeline.left_out == 0
    for pipe, busy in row.pipes.items():
        spans = [item for item in timeline.intervals if item.pipe == pipe]
        assert sum(item.end - item.start for item in spans) == busy
    short = task_timeline(program.tasks[1], B3, limit=3)
    assert len(short.intervals) <= 3 and short.left_out > 0


def test_timeline_finds_in_l2_what_the_run_does():
    program = _chain(2)
    row = time_program(program, B3).tasks[0]
    task, access = executed_tasks(program, B3)[0]
    cold, warm = (task_timeline(task, B3, memory=memory) for memory in (memory_state(task, access), None))
    assert cold.cycles == row.cycles > warm.cycles
    assert cold.cycles - 2 <= max(item.end for item in cold.intervals) <= cold.cycles


def test_breakdown_is_scaled_without_loss():
    assert shared_out({"CUBE": 1, "MTE2": 1, "FLAG": 1}, 2) == {"CUBE": 1, "FLAG": 1, "MTE2": 0}
    assert sum(shared_out({"CUBE": 70, "MTE2": 31}, 57).values()) == 57
    assert shared_out({}, 0) == {}
