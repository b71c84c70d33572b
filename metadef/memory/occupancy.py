"""A map from byte ranges to their owners, for the checker: who wrote these bytes last."""

from __future__ import annotations

from bisect import bisect_left, bisect_right


class ByteMap:
    """Half-open byte ranges with an owner each; bytes nobody has written belong to None."""

    def __init__(self) -> None:
        self._marks: list[int] = []
        self._owners: list[int | None] = []

    def put(self, low: int, high: int, owner: int) -> None:
        """Bytes [low, high) now belong to ``owner``."""
        if low >= high:
            return
        after = self._at(high)
        start, stop = bisect_left(self._marks, low), bisect_right(self._marks, high)
        self._marks[start:stop] = [low, high]
        self._owners[start:stop] = [owner, after]

    def owners(self, low: int, high: int) -> list[int | None]:
        """Distinct owners of the bytes [low, high), in order of address."""
        if low >= high:
            return []
        start, stop = bisect_right(self._marks, low), bisect_left(self._marks, high)
        return list(dict.fromkeys([self._at(low), *self._owners[start:stop]]))

    def _at(self, position: int) -> int | None:
        index = bisect_right(self._marks, position) - 1
        return self._owners[index] if index >= 0 else None
