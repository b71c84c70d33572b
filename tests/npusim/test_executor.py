import gc
import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from npusim.executor import HOST_ROW, OK, TRACE_FULL, Executor
from npusim.kernels.desc import Call, task_table
from npusim.kernels.dispatch import ROW_HOST, ROW_JUMP, ROW_JUMP_IF_NONZERO, ROW_JUMP_IF_ZERO, ROW_NOP
from npusim.kernels.elementwise import View, elementwise


def increments(x: np.ndarray, count: int) -> list[Call]:
    """Tasks that each add one to every element of x."""
    view = View.dense(x.ctypes.data, "f32", x.shape)
    return [elementwise("add(x0,p0)", [view], view, x.shape, [1.0])] * count


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_tasks_run_in_order_with_all_their_parts(threads: int) -> None:
    x = np.zeros(200_000, np.float32)
    tasks = increments(x, 50)
    assert tasks[0].parts > 1
    with Executor(threads) as executor:
        table = task_table(tasks)
        assert executor.run(table) == executor.run(table)
        status = executor.run(table, 10, 20)
    assert (status.code, status.row) == (OK, 20)
    assert (x == 110).all()


def test_many_small_tasks_and_empty_tables() -> None:
    x = np.zeros(5, np.float32)
    with Executor(2) as executor:
        tasks = increments(x, 20_000)
        assert executor.run(task_table(tasks)).row == 20_000
        assert executor.run(np.zeros((0, 3), np.int64)).code == OK
        empty = np.zeros((0, 4), np.float32)
        tasks = increments(empty, 2)
        assert executor.run(task_table(tasks)).code == OK
    assert (x == 20_000).all()


def test_steering_rows_and_trace() -> None:
    x, flag = np.zeros(4, np.float32), np.zeros(1, np.uint8)
    keep = increments(x, 1)[0]
    ((kernel, parts, desc),) = task_table([keep])
    row = keep.row()
    at = flag.ctypes.data
    table = np.array(
        [
            (ROW_NOP, 0, 0),
            (ROW_JUMP_IF_ZERO, 3, at),
            row,
            (ROW_HOST, 0, 77),
            row,
            (ROW_JUMP_IF_NONZERO, 7, at),
            row,
            (ROW_JUMP, 9, 0),
            row,
            row,
        ],
        np.int64,
    )
    assert kernel == row[0] and parts == row[1] and desc
    trace = np.zeros(16, np.int64)
    with Executor(1) as executor:
        status = executor.run(table, trace=trace)
        assert (status.code, status.row, status.info) == (HOST_ROW, 3, 77)
        assert trace[1 : 1 + trace[0]].tolist() == [0, 1, 3]
        assert executor.run(table, status.row + 1, trace=trace).code == OK
        assert trace[1 : 1 + trace[0]].tolist() == [4, 5, 6, 7, 9]
        flag[0] = 1
        assert executor.run(table, 4, trace=trace).code == OK
        assert trace[1 : 1 + trace[0]].tolist() == [4, 5, 7, 9]
        short = np.zeros(2, np.int64)
        status = executor.run(table, 4, trace=short)
        assert (status.code, status.row) == (TRACE_FULL, 5)
    assert (x == 6).all()


def test_scratch_grows_on_demand() -> None:
    from npusim.kernels.rows import RowShape, softmax

    x = np.random.default_rng(0).standard_normal((2, 300_000)).astype(np.float32)
    out = np.zeros_like(x)
    task = softmax(*RowShape.axis(x.shape, 1, (x.ctypes.data, "f32"), (out.ctypes.data, "f32")))
    assert task.desc[0] > 1 << 20
    with Executor(2) as executor:
        assert executor.run(task_table([task])).code == OK
    np.testing.assert_allclose(out.sum(1), 1, rtol=1e-4)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not place threads")
def test_workers_keep_off_the_callers_cpu() -> None:
    mine = os.sched_getaffinity(0)
    if len(mine) < 2:
        pytest.skip("a single CPU leaves no choice")
    x = np.zeros(100, np.float32)
    try:
        for cpu in sorted(mine)[:2]:
            os.sched_setaffinity(0, {cpu})
            os.sched_setaffinity(0, mine)
            with Executor(3) as executor:
                before = set(threading.enumerate())
                executor.run(task_table(increments(x, 5)))
                workers = [thread for thread in threading.enumerate() if thread not in before]
                assert len(workers) == 2
                for worker in workers:
                    assert worker.native_id is not None
                    assert len(mine - os.sched_getaffinity(worker.native_id)) == 1
            os.sched_setaffinity(0, {cpu})
            with Executor(2) as executor:
                assert executor.run(task_table(increments(x, 5))).code == OK
    finally:
        os.sched_setaffinity(0, mine)
    assert os.sched_getaffinity(0) == mine


def test_concurrent_callers_and_several_executors() -> None:
    arrays = [np.zeros(50_000, np.float32) for _ in range(4)]
    tasks = [increments(x, 40) for x in arrays]
    shared, own = Executor(2), Executor(3)

    def work(i: int) -> None:
        for _ in range(5):
            assert (shared if i % 2 else own).run(task_table(tasks[i])).code == OK

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    shared.close()
    own.close()
    assert all((x == 200).all() for x in arrays)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_child_starts_its_own_workers() -> None:
    code = """
import os, numpy as np
from npusim.executor import Executor
from npusim.kernels.desc import task_table
from npusim.kernels.elementwise import View, elementwise
x = np.zeros(200_000, np.float32)
view = View.dense(x.ctypes.data, "f32", x.shape)
tasks = [elementwise("add(x0,p0)", [view], view, x.shape, [1.0])] * 20
table, executor = task_table(tasks), Executor(2)
executor.run(table)
child = os.fork()
executor.run(table)
if child == 0:
    os._exit(0 if (x == 40).all() else 1)
_, status = os.waitpid(child, 0)
assert status == 0 and (x == 40).all()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_interrupt_is_seen_between_tasks() -> None:
    x = np.zeros(20_000, np.float32)
    table = task_table(tasks := increments(x, 1)).repeat(2_000_000, axis=0)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with Executor(1) as executor:
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            executor.run(table)
        assert executor.run(table, 0, 5).code == OK, "the executor works on after an interrupt"
    assert tasks


def test_forgotten_executors_let_their_workers_go() -> None:
    x = np.zeros(200_000, np.float32)
    tasks = increments(x, 2)
    executor = Executor(3)
    executor.run(task_table(tasks))
    workers = executor._workers
    del executor
    gc.collect()
    for worker in workers:
        worker.join(timeout=30)
        assert not worker.is_alive()


def test_the_interpreter_ends_with_workers_at_work() -> None:
    code = """
import numpy as np
from npusim.executor import Executor
from npusim.kernels.desc import task_table
from npusim.kernels.elementwise import View, elementwise
x = np.zeros(200_000, np.float32)
view = View.dense(x.ctypes.data, "f32", x.shape)
tasks = [elementwise("add(x0,p0)", [view], view, x.shape, [1.0])] * 20
table, executors = task_table(tasks), [Executor(3), Executor(2)]
for executor in executors:
    executor.run(table)
executor = executors = None
Executor(4).run(table)
"""
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


def test_refusals() -> None:
    with pytest.raises(ValueError, match="at least one thread"):
        Executor(0)
    executor = Executor(1)
    for bad in (np.zeros((2, 3), np.int32), np.zeros((2, 2), np.int64), np.zeros((3, 4), np.int64)[:, :3]):
        with pytest.raises(ValueError, match="task table"):
            executor.run(bad)
    with pytest.raises(ValueError, match="do not lie within"):
        executor.run(np.zeros((2, 3), np.int64), 0, 3)
    with pytest.raises(ValueError, match="trace"):
        executor.run(np.zeros((2, 3), np.int64), trace=np.zeros(4, np.int32))
    executor.close()
    with pytest.raises(ValueError, match="closed"):
        executor.run(np.zeros((0, 3), np.int64))
