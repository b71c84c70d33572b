"""The pipe engine: shared ports serve in the order of need, so that a faster port never makes a core slower."""

from itertools import pairwise

import numpy as np
import pytest

from metadef.cost import engine
from metadef.cost.streams import CoreStream, MemoryState, kernel_streams
from metadef.kernel import CubeTile
from metadef.target import Target, load_target
from tests.metadef.cost.samples import matmul_kernel

FIELD = {name: index for index, name in enumerate(engine.FIELDS)}


def instruction(pipe: str, **values: int) -> np.ndarray:
    """A row of the engine that waits for nothing and sets nothing but what ``values`` say."""
    row = np.zeros(engine.N_FIELDS, np.int64)
    row[FIELD["wait0"] : FIELD["buffer"] + 1] = -1
    row[FIELD["pipe"]], row[FIELD["path"]] = engine.PIPES.index(pipe), engine.NO_PATH
    for name, value in values.items():
        row[FIELD[name]] = value
    return row


def transfer(pipe: str, path: str, l2_bytes: int, **values: int) -> np.ndarray:
    return instruction(pipe, path=engine.PATHS.index(path), bytes=l2_bytes, l2_bytes=l2_bytes, **values)


def intervals_of(rows: list[np.ndarray]) -> list[tuple[int, int]]:
    """(start, end) of instructions on a core whose share of L2 is a byte a cycle and whose flags are free."""
    core = engine.new_core(4, np.full(len(engine.PATHS), 1e4), (1.0, 1.0), (0, 0, 0))
    found = np.zeros((len(rows), 2), np.int64)
    assert engine.execute(core, np.stack(rows), len(rows), found) == engine.OK
    return [(int(start), int(end)) for start, end in found]


def test_a_port_keeps_what_lies_idle_before_and_behind_a_late_transfer():
    rows = [
        instruction("CUBE", hold=50, set0=0),
        instruction("VECTOR", hold=100, set0=1),
        transfer("MTE3", "UB->GM", 10, wait0=1),  # at 100
        transfer("FIXPIPE", "L0C->GM", 10, wait0=0),  # at 50, in the idle time before that
        transfer("MTE2", "GM->UB", 45),  # at once: 45 of the 50 cycles before
        transfer("MTE2", "GM->UB", 10),  # the 5 that are left, and 5 behind the fixpipe's
        transfer("MTE2", "GM->UB", 50),  # 35 more, and before the store, which was asked for later
    ]
    assert intervals_of(rows)[2:] == [(100, 110), (50, 60), (0, 45), (45, 65), (65, 115)]


def test_what_was_asked_for_first_is_served_first():
    """A load that is met behind a store of later need does not wait for it; one of later need waits for both."""
    rows = [
        instruction("VECTOR", hold=30, set0=1),
        transfer("MTE3", "UB->GM", 500, wait0=1),  # at 30
        transfer("MTE2", "GM->UB", 40),  # at once: the 30 cycles before, and 10 more
        transfer("MTE2", "GM->UB", 5),  # at 40, when the store has begun
    ]
    assert intervals_of(rows)[1:] == [(30, 530), (0, 40), (40, 545)]


def core_cycles(stream: CoreStream, target: Target, shares: tuple[float, float]) -> int:
    sustained = [target.paths[name].sustained_bytes_per_cycle if name in target.paths else 1.0 for name in engine.PATHS]
    flag, handoff, issue = (int(target.value(f"sync.{name}_cycles")) for name in ("flag", "handoff", "scalar_issue"))
    core = engine.new_core(stream.events, np.asarray(sustained), shares, (flag, handoff, issue))
    for batch in stream.batches():
        assert engine.execute(core, batch, len(batch), np.zeros((0, 2), np.int64)) == engine.OK
    assert core.end_why.sum() == core.clock[1] and core.end_why.min() >= 0
    return int(core.clock[1])


@pytest.mark.parametrize("soc", ["Ascend310P3", "Ascend910A"])
def test_a_larger_share_of_the_ports_is_never_slower(soc):
    target = load_target(soc)
    memory = MemoryState(cold=(0.5, 1.0), write_back=0.3)
    for m, n, k, tile in (
        (1024, 1024, 512, CubeTile(128, 128, 64, 256, split_m=4, split_n=2)),
        (512, 3072, 800, CubeTile(64, 192, 80, 80, split_n=16)),
    ):
        stream = kernel_streams(matmul_kernel(m, n, k, tile), target, memory)
        assert stream is not None
        cycles = [core_cycles(stream, target, (20 * more, 8 * more)) for more in np.geomspace(0.5, 8, 25)]
        assert all(after <= before for before, after in pairwise(cycles)), cycles
