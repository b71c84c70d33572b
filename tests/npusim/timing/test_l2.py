"""What L2 holds from task to task."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npusim.timing.l2 import L2


def test_second_read_hits_until_others_push_it_out():
    cache = L2(1000)
    assert cache.touch([(0, 400)], []).hits == (0,)
    assert cache.touch([(0, 400)], []).hits == (400,)
    cache.touch([(1000, 700)], [])
    assert cache.touch([(0, 400)], []).hits == (300,)


def test_writes_stay_and_leave_when_evicted():
    cache = L2(1000)
    assert cache.touch([], [(0, 600)]).written_back == 0
    assert cache.touch([(0, 600)], []).hits == (600,)
    assert cache.touch([(5000, 800)], []).written_back == 400


def test_more_than_l2_streams_through():
    """302 MB read again and again through 192 MB never hits (board: 0.005 %)."""
    cache = L2(192)
    cache.touch([(0, 302)], [])
    assert cache.touch([(0, 302)], []).hits == (0,)


def test_slices_that_fit_hit_on_every_pass_but_the_first():
    cache = L2(192)
    hits = [cache.touch([(0, 75)], []).hits[0] for _ in range(4)]
    assert sum(hits) / (4 * 75) == 0.75


def test_reused_memory_is_not_the_old_tensor():
    cache = L2(1000)
    cache.touch([], [(0, 100)])
    cache.drop(0, 100)
    assert cache.touch([(0, 100)], []).hits == (0,)


def test_streaming_output_goes_to_memory():
    access = L2(100).touch([(0, 200)], [(1000, 200)])
    assert access.written_back == pytest.approx(150, abs=1)


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 30), st.booleans()), max_size=40))
def test_never_holds_more_than_it_can(accesses):
    cache = L2(100)
    for place, size, is_write in accesses:
        span = (place * 10, size)
        access = cache.touch([] if is_write else [span], [span] if is_write else [])
        assert cache.resident_bytes <= 100
        assert all(0 <= hit <= size for hit in access.hits)
        assert access.written_back >= 0
