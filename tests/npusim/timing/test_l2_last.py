"""L2 under a compiler that tells it what is read for the last time."""

from npusim.timing.l2 import L2


def test_what_is_read_for_the_last_time_makes_room_and_is_not_written_back():
    cache = L2(1000)
    cache.touch([], [(0, 800)])
    access = cache.touch([(0, 800)], [(5000, 900)], [True])
    assert access.hits == (800,) and access.written_back == 0
    assert cache.touch([(5000, 900)], []).hits == (900,)


def test_without_a_word_old_bytes_are_written_back():
    cache = L2(1000)
    cache.touch([], [(0, 800)])
    assert cache.touch([(0, 800)], [(5000, 900)]).written_back > 0
