"""Discrete Fourier transforms over vectors of channels, emitted as LLVM IR.

Every number is a vector whose lanes are independent channels, so butterflies need no shuffles. Up to STRAIGHT points a
transform is straight-line code: even lengths follow the conjugate-pair split radix, what is left of odd length is
summed term by term. Longer ones take two passes of short transforms with a table of turns between them. Two real lines
are transformed as the parts of one complex line. No transform scales its result: backward after forward multiplies by
the length, and the bins of two real lines come out doubled, the first and the middle one apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from npusim.kernels.ir import F32, Kernel, Val, vec

STRAIGHT = 24
_SECOND = 8
_ROW_PAD_BYTES = 64

Complex = tuple[Val, Val]
Index = int | Val
Pair = Callable[[Index], tuple[Complex, Complex]]
Line = Callable[[Index], Complex]
"""A complex number of a line by its place; lines longer than STRAIGHT are asked for places known at run time too."""


@dataclass(frozen=True)
class Room:
    """Scratch of a transform: two lines of complex vectors one after the other, and the table of turns."""

    line: Val
    turns: Val
    lanes: int

    def place(self, number: Index) -> Val:
        return self.line + number * (8 * self.lanes)


def row_pitch(edge: int, lanes: int) -> int:
    """Bytes from row to row of a tile's spectrum: rows that begin in other sets of the cache."""
    return edge * lanes * 4 + _ROW_PAD_BYTES


def room_bytes(edge: int, lanes: int) -> int:
    """Bytes at `Room.line`."""
    return 2 * edge * lanes * 8


def turn_table(edge: int) -> np.ndarray:
    """What stands between the two passes of a long transform: float32 [_SECOND][edge / _SECOND][cosine, sine]."""
    first = edge // _SECOND
    angles = -2 * np.pi / edge * np.outer(np.arange(_SECOND), np.arange(first))
    return np.stack([np.cos(angles), np.sin(angles)], axis=-1).astype(np.float32)


def places(k: Kernel, edge: int, begin: int, end: int) -> Iterator[Index]:
    """Places of a line for a loop body: written out for a short line, else emitted once."""
    if edge <= STRAIGHT:
        yield from range(begin, end)
    else:
        with k.loop(end, start=begin) as place:
            yield place


def forward(k: Kernel, edge: int, line: Line, room: Room) -> Line:
    """The bins of a complex line."""
    if edge <= STRAIGHT:
        return list_line(complex_forward(k, [line(j) for j in range(edge)]))
    first, lanes = edge // _SECOND, room.lanes
    middle = Room(room.line + edge * lanes * 8, room.turns, lanes)
    with k.loop(_SECOND) as b:
        bins = complex_forward(k, [line(b + _SECOND * a) for a in range(first)])
        for number, (re, im) in enumerate(bins):
            at = room.turns + (b * first + number) * 8
            cosine, sine = (k.splat(k.load(at + 4 * part, F32), lanes) for part in (0, 1))
            _keep(k, middle, b * first + number, multiply(k, (re, im), (cosine, sine)))
    with k.loop(first) as place:
        bins = complex_forward(k, [kept(k, middle, place + first * b) for b in range(_SECOND)])
        for turn, value in enumerate(bins):
            _keep(k, room, place + first * turn, value)
    return lambda number: kept(k, room, number)


def backward(k: Kernel, edge: int, line: Line, room: Room) -> Line:
    """The complex line of some bins, times its length."""
    turned_back = forward(k, edge, lambda place: _swapped(line(place)), room)
    return lambda place: _swapped(turned_back(place))


def split(k: Kernel, edge: int, bins: Line, act: Callable[[Index, Complex, Complex], None]) -> list[Val]:
    """Bins of x + i y into those of the real lines x and y, doubled: `act(place, x bin, y bin)` for 1 .. edge/2 - 1.

    Returns bin 0 of x, its middle bin, and the same of y, which are real and not doubled.
    """
    half = edge // 2
    ends = [bins(0)[0], bins(half)[0], bins(0)[1], bins(half)[1]]
    for place in places(k, edge, 1, half):
        act(place, *separated(bins(place), bins(edge - place)))
    return ends


def separated(a: Complex, b: Complex) -> tuple[Complex, Complex]:
    """Bins of two real lines, doubled, from those of the complex line at a place and at the one opposite."""
    return (a[0] + b[0], a[1] - b[1]), (a[1] + b[1], b[0] - a[0])


def joined(k: Kernel, edge: int, both: Pair, ends: Sequence[Val], room: Room) -> Line:
    """The inverse of `split` without a factor: `both(place)` are the bins of x and y, ends as there."""
    half = edge // 2
    values: list[Complex] = [(ends[0], ends[2])] * edge
    values[half] = ends[1], ends[3]
    for place in places(k, edge, 1, half):
        (ar, ai), (br, bi) = both(place)
        pair = (ar - bi, ai + br), (ar + bi, br - ai)
        if isinstance(place, int):
            values[place], values[edge - place] = pair
        else:
            _keep(k, room, place, pair[0])
            _keep(k, room, edge - place, pair[1])
    if edge <= STRAIGHT:
        return list_line(values)
    for place in (0, half):
        _keep(k, room, place, values[place])
    return lambda place: kept(k, room, place)


def list_line(values: Sequence[Complex]) -> Line:
    def at(place: Index) -> Complex:
        assert isinstance(place, int)
        return values[place]

    return at


def kept(k: Kernel, room: Room, place: Index) -> Complex:
    at, kind = room.place(place), vec(F32, room.lanes)
    return k.load(at, kind), k.load(at + 4 * room.lanes, kind)


def _keep(k: Kernel, room: Room, place: Index, value: Complex) -> None:
    at = room.place(place)
    k.store(value[0], at)
    k.store(value[1], at + 4 * room.lanes)


def _swapped(value: Complex) -> Complex:
    return value[1], value[0]


def complex_forward(k: Kernel, x: Sequence[Complex]) -> list[Complex]:
    """The n bins of n complex numbers, straight-line."""
    n = len(x)
    if n % 2:
        return _odd_forward(k, x)
    even = complex_forward(k, x[0::2])
    if n % 4:
        odd = [_turned(k, z, -j, n) for j, z in enumerate(complex_forward(k, x[1::2]))]
        pairs = list(zip(even, odd, strict=True))
        return [_add(a, b) for a, b in pairs] + [_subtract(a, b) for a, b in pairs]
    quarter = n // 4
    ahead = complex_forward(k, x[1::4])
    behind = complex_forward(k, [x[(4 * j - 1) % n] for j in range(quarter)])
    bins: list[Complex] = list(even) * 2
    for j in range(quarter):
        a, b = _turned(k, ahead[j], -j, n), _turned(k, behind[j], j, n)
        total, (dr, di) = _add(a, b), _subtract(a, b)
        rest = (di, -dr)
        first, second = even[j], even[j + quarter]
        bins[j], bins[j + 2 * quarter] = _add(first, total), _subtract(first, total)
        bins[j + quarter], bins[j + 3 * quarter] = _add(second, rest), _subtract(second, rest)
    return bins


def multiply(k: Kernel, a: Complex, b: Complex) -> Complex:
    """The product of two complex numbers."""
    return k.fma(a[0], b[0], -(a[1] * b[1])), k.fma(a[0], b[1], a[1] * b[0])


def _add(a: Complex, b: Complex) -> Complex:
    return a[0] + b[0], a[1] + b[1]


def _subtract(a: Complex, b: Complex) -> Complex:
    return a[0] - b[0], a[1] - b[1]


def _turned(k: Kernel, z: Complex, step: int, n: int) -> Complex:
    """z times exp(2 pi i step / n)."""
    eighth = 8 * step % (8 * n)
    re, im = z
    if eighth % n == 0:
        quarter, diagonal = divmod(eighth // n, 2)
        if diagonal:
            root = math.sqrt(0.5)
            re, im = (re - im) * root, (re + im) * root
        return [(re, im), (-im, re), (-re, -im), (im, -re)][quarter]
    cosine, sine = _unit(step, n)
    return k.fma(re, cosine, im * -sine), k.fma(re, sine, im * cosine)


def _unit(step: int, n: int) -> tuple[float, float]:
    angle = 2 * math.pi * (step % n) / n
    return math.cos(angle), math.sin(angle)


def _odd_forward(k: Kernel, x: Sequence[Complex]) -> list[Complex]:
    n = len(x)
    if n == 1:
        return list(x)
    sums = [_add(x[j], x[n - j]) for j in range(1, n // 2 + 1)]
    differences = [_subtract(x[j], x[n - j]) for j in range(1, n // 2 + 1)]
    total = x[0]
    for value in sums:
        total = _add(total, value)
    bins = [total] * n
    for q in range(1, n // 2 + 1):
        even = [_weighted(k, x[0][part], [s[part] for s in sums], q, n, 0) for part in (0, 1)]
        odd = [_weighted(k, None, [d[part] for d in differences], q, n, 1) for part in (0, 1)]
        bins[q], bins[n - q] = (even[0] + odd[1], even[1] - odd[0]), (even[0] - odd[1], even[1] + odd[0])
    return bins


def _weighted(k: Kernel, first: Val | None, terms: Sequence[Val], step: int, n: int, part: int) -> Val:
    """first + the sum over j = 1, 2, … of term j times the cosine (part 0) or sine (1) of 2 pi j step / n."""
    total = first
    for j, term in enumerate(terms, 1):
        weight = _unit(j * step, n)[part]
        total = term * weight if total is None else k.fma(term, weight, total)
    assert total is not None
    return total
