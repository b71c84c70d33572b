import numpy as np

from npusim.kernels.desc import task_table
from npusim.kernels.elementwise import View, elementwise
from tests.npusim.kernels.inputs import address, run


def test_descriptors_of_a_table_lie_together_and_stay_where_they_are() -> None:
    x, out = np.full(20, -1.0, np.float32), np.zeros(20, np.float32)
    views = [View.dense(address(a), "f32", a.shape) for a in (x, out)]
    calls = [elementwise("relu(x0)", views[:1], views[1], x.shape) for _ in range(3)]
    table = task_table([*calls, calls[0]])
    assert table[3, 2] == table[0, 2] and np.all(np.diff(table[:3, 2]) == calls[0].desc.nbytes)
    again = task_table(calls[::-1])
    assert np.array_equal(again[::-1, 2], table[:3, 2])
    run(calls[1])
    assert not out.any()
    calls[1].desc[1:3] = 1, 1  # chunk and elements: a patched field is read by the next run
    out[:] = 7
    run(calls[1])
    assert out[0] == 0 and (out[1:] == 7).all()
