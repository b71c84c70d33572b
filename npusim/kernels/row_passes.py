"""What operators over whole rows are made of: passes over a row that lies in scratch or in place.

An operator reads a row three times: two passes reduce it to one vector each (the largest element and the sum of
exponentials; mean and variance), the third makes the results. Sums run over fixed lanes and blocks in turn, which are
then added in pairs, so a result depends on the row alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from npusim.kernels import expressions, vmath
from npusim.kernels.epilogue import saturated
from npusim.kernels.ir import F32, I1, I8, I32, LANES, RAW, SIZE, Kernel, Val, Var, vec

OUTER = 4
GROUP = 4  # blocks of 16 lanes that a pass takes together
LINE = 64  # bytes of a cache line
_NEAR = 4096  # bytes within which memory asked for would come too late
_PAGE = 4096  # bytes of the smallest page that some CPU protects
SAMPLED = 2048  # elements: in shorter rows a pass over all of them costs little
BESIDE_MOST = 4  # rows beside each other, as many as registers hold the sums of
_SAMPLES = 16  # blocks that stand in for a row
# Fields of a row kernel's descriptor.
DIMS, SOURCE, TARGET = 1, 1 + OUTER, 4 + 2 * OUTER
SOURCE_STEP, TARGET_STEP = SOURCE + 2 + OUTER, TARGET + 2 + OUTER
SEGMENTS, SEGMENT, COUNT, ROWS, CHUNK, SATURATE, PAD = range(7 + 3 * OUTER, 14 + 3 * OUTER)
GAMMA, BETA, EPSILON = range(14 + 3 * OUTER, 17 + 3 * OUTER)

Combine = Callable[[Val, Val], Val]
Totals = tuple[Val, ...]


class Work:
    """A row in scratch: where elements are read, and where results go.

    `read` brings its elements there; what a pass leaves for the next one lies over them.
    """

    single_lanes = False  # whether operands of the block after the whole ones are read by those that have a meaning

    def __init__(self, k: Kernel, desc: Val, row: Val, read: Callable[[], object]) -> None:
        self.k, self.desc, self.row, self.read = k, desc, row, read
        self.count = k.field(desc, COUNT)
        self.blocks = self.count & -LANES  # elements in whole blocks
        self.groups = self.count & -(LANES * GROUP)  # elements in whole groups of blocks

    def load(self, index: Val) -> Val:
        """Sixteen elements as fp32."""
        return self.k.load(self.row + index * 4, vec(F32))

    def load_rest(self) -> Val:
        """The block after the whole ones, whose last lanes are of no meaning."""
        return self.load(self.blocks)

    def live(self) -> Val:
        """Lanes of that block which have a meaning."""
        return self.k.lane_index() < self.k.splat(self.k.convert(self.count - self.blocks, "trunc", I32))

    def kept(self, index: Val) -> Val:
        """Where a pass leaves 16 fp32 values for the next one."""
        return self.row + index * 4

    def ahead(self, index: Val, what: str) -> None:
        """Ask for memory that is needed later, around the group of blocks at `index`, as `Straight` does."""

    def put_all(self, value: Callable[[Val, Val], Val], ahead: str = "") -> None:
        """Results of the whole row; `value(index, x)` makes 16 of them."""
        with self.k.loop(self.count, step=LANES) as i:
            self.k.store(value(i, self.load(i)), self.row + i * 4)


class Straight(Work):
    """A dense row, read and written where it lies; scratch holds what is made in between."""

    def __init__(
        self, k: Kernel, desc: Val, row: Val, places: tuple[Val, Val], dtypes: tuple[str, str], past_caches: bool
    ) -> None:
        super().__init__(k, desc, row, read=lambda: None)
        (self.source, self.target), (self.come, self.go), self.past_caches = places, dtypes, past_caches
        self.rest, self.single_lanes = self.count & (LANES - 1), k.cpu.wide
        self.spare = k.const(0)
        self.apart = k.select(self.target.eq(self.source), self.row, self.target)
        if not self.single_lanes:
            self._hold_rest()

    def _hold_rest(self) -> None:
        """See to it that `load_rest` finds the elements after the whole blocks, where no single lanes are read.

        A whole block is read there, of which the end may lie beyond the tensor: within the same page of memory that
        is allowed, else the elements are moved.
        """
        k, size = self.k, LANES * SIZE[self.come]
        self.spare = k.alloca(LANES * 4)
        self.last = k.var(self.source + self.blocks * SIZE[self.come])
        with k.when((self.last.get() & (_PAGE - 1)) > _PAGE - size):
            self._move(self.come, self.last.get(), self.spare)
            self.last.set(self.spare)

    def _move(self, dtype: str, source: Val, target: Val) -> None:
        """The elements after the whole blocks, by powers of two."""
        k, size, count = self.k, SIZE[dtype], LANES // 2
        while count:
            with k.when((self.rest & count).ne(0)):
                at = (self.rest & (LANES - 2 * count)) * size
                k.store(k.load(source + at, vec(RAW[size], count)), target + at)
            count //= 2

    def load(self, index: Val) -> Val:
        return self.k.load_f32(self.source + index * SIZE[self.come], self.come)

    def load_rest(self) -> Val:
        if self.single_lanes:
            return self.k.load_f32(self.source + self.blocks * SIZE[self.come], self.come, live=self.live())
        return self.k.load_f32(self.last.get(), self.come)

    def kept(self, index: Val) -> Val:
        """In the target itself where that is fp32 and not the source, but for the lanes after the whole blocks."""
        whole = self.go == "f32" and index is not self.blocks and not self.past_caches
        return (self.apart if whole else self.row) + index * 4

    def ahead(self, index: Val, what: str) -> None:
        """The next row of the source, or where this one's results go.

        Where these pass the caches there are rows alone to ask for: the one `after` the next, or `both`. As a CPU drops
        what is asked for faster than memory answers, passes over fp32 that have little else to do then ask `again`.
        """
        if what == "again" and not (self.past_caches and self.come == "f32"):
            return
        k = self.k
        step = k.field(self.desc, SOURCE + OUTER)
        bases, dtype = [self.source + step], self.come
        if self.past_caches and what in ("after", "both"):
            bases = [self.source + step * 2, *bases][: 1 + (what == "both")]
        elif what == "target" and not self.past_caches:
            bases, dtype = [self.target], self.go
        for base in bases:
            for line in range(0, LANES * GROUP * SIZE[dtype], LINE):
                k.prefetch(base + index * SIZE[dtype] + line)

    def ahead_beside(self, index: Val, rows: int) -> None:
        """Ask for as many rows further on, the results' lines too: what goes by is so short that a CPU does not see it
        as streams. Of very short rows twice as many, which memory takes as long to bring."""
        k = self.k
        for base, field, dtype in ((self.source, SOURCE, self.come), (self.target, TARGET, self.go)):
            distance = k.field(self.desc, field + OUTER) * rows
            base = base + k.select(distance < _NEAR, distance * 2, distance) + index * SIZE[dtype]
            for line in range(0, LANES * GROUP * SIZE[dtype], LINE):
                k.prefetch(base + line)

    def put_all(self, value: Callable[[Val, Val], Val], ahead: str = "") -> None:
        k, flag = self.k, self.k.field(self.desc, SATURATE)
        with k.either(flag.eq(0)) as (free, bound):
            with free:
                self.put_groups(value, k.const(0), self.groups, ahead)
                with k.loop(self.blocks, start=self.groups, step=LANES) as i:
                    self.store_block(value(i, self.load(i)), i)
            with bound, k.loop(self.blocks, step=LANES) as i:
                result = saturated(k, value(i, self.load(i)), flag, self.go)
                k.store_f32(result, self.target + i * SIZE[self.go], self.go)
        with k.when(self.rest > 0):
            self.store_rest(saturated(k, value(self.blocks, self.load_rest()), flag, self.go))

    def store_block(self, result: Val, at: Val) -> None:
        """Results of one block."""
        expressions.store(self.k, result, self.target + at * SIZE[self.go], self.go)

    def store_rest(self, result: Val) -> None:
        """Results of the elements after the whole blocks."""
        k, place = self.k, self.target + self.blocks * SIZE[self.go]
        if self.single_lanes:
            k.store_live(k.narrowed(result, self.go), place, self.live())
        else:
            k.store_f32(result, self.spare, self.go)
            self._move(self.go, self.spare, place)

    def put_groups(self, value: Callable[[Val, Val], Val], begin: Val, end: Val, ahead: str = "") -> None:
        """Results of whole groups of blocks."""
        with self.k.loop(end, start=begin, step=LANES * GROUP) as i:
            if ahead:
                self.ahead(i, ahead)
            self.put_group(value, i)

    def put_group(self, value: Callable[[Val, Val], Val], first: Val) -> None:
        """Results of one group of blocks."""
        self.store_group(self.make_group(value, first), first)

    def make_group(self, value: Callable[[Val, Val], Val], first: Val) -> list[Val]:
        """What `store_group` takes."""
        return [value(at, self.load(at)) for at in (first + block * LANES for block in range(GROUP))]

    def store_group(self, results: Sequence[Val], first: Val) -> None:
        """Results of one group of blocks that have been made, block by block: joining them to lines would take
        shuffles, and passes over rows wait for arithmetic."""
        for block, result in enumerate(results):
            where = self.target + (first + block * LANES) * SIZE[self.go]
            expressions.store(self.k, result, where, self.go, self.past_caches)


@dataclass(frozen=True)
class Pass:
    """A reduction of a row to some `sums`: `add(sums, term, index)` takes in a block's terms, `combine` joins two.

    Blocks are added to `ways` vectors in turn: as many as it takes that no block waits for the one before. Terms are
    the elements, or what `stages` makes of them, which `overlaps` if each cut is to lie between a block and the next.
    """

    start: float
    add: Callable[[Totals, Val, Val], Totals]
    combine: Combine
    stages: Callable[[Val], vmath.Stages] | None = None
    overlaps: bool = False
    ways: int = GROUP
    sums: int = 1

    def term(self, x: Val) -> Val:
        """Terms of one block by itself."""
        return x if self.stages is None else vmath.whole(self.stages(x))


class Sums:
    """The vectors that the blocks of a pass are added to in turn."""

    def __init__(self, work: Work, how: Pass) -> None:
        self.work, self.how = work, how
        self.totals = [[work.k.var(how.start, vec(F32)) for _ in range(how.sums)] for _ in range(how.ways)]

    def take_groups(self, begin: Val, end: Val, ahead: str = "", terms: _Terms | None = None) -> None:
        """Whole groups of blocks, whose `terms` may be those of more. `ahead`: what memory to fetch beside them; two
        passes of three share it, as one alone would ask faster than memory answers."""
        terms = terms or self.terms(begin, end)
        with self.work.k.loop(end, start=begin, step=LANES * GROUP) as i:
            if ahead:
                self.work.ahead(i, ahead)
            self.take_group(terms, i)

    def terms(self, begin: Val, end: Val) -> _Terms:
        """What groups of blocks are taken from, in order."""
        return _StagedTerms(self.work, self.how, begin, end) if self.how.overlaps else _Terms(self.work, self.how)

    def take_group(self, terms: _Terms, first: Val) -> None:
        """One group of blocks."""
        for number in range(GROUP):
            at = first + number * LANES
            self._take(number % self.how.ways, terms.at(at, number), at)

    def _take(self, way: int, term: Val, at: Val) -> None:
        totals = self.totals[way]
        after = self.how.add(tuple(total.get() for total in totals), term, at)
        for total, value in zip(totals, after, strict=True):
            total.set(value)

    def take_block(self, at: Val) -> None:
        """A block after the whole groups."""
        self._take(0, self.how.term(self.work.load(at)), at)

    def take_rest(self) -> None:
        """The elements after the whole blocks."""
        k, work = self.work.k, self.work
        before = [total.get() for total in self.totals[0]]
        self._take(0, self.how.term(work.load_rest()), work.blocks)
        for total, value in zip(self.totals[0], before, strict=True):
            total.set(k.select(work.live(), total.get(), value))

    def folded(self) -> Totals:
        """All lanes combined, in every lane."""
        levels = [[total.get() for total in totals] for totals in self.totals]
        while len(levels) > 1:
            pairs = zip(levels[::2], levels[1::2], strict=True)
            levels = [[self.how.combine(*both) for both in zip(*pair, strict=True)] for pair in pairs]
        return tuple(fold_lanes(self.work.k, total, self.how.combine) for total in levels[0])


class _Terms:
    """Terms of block after block."""

    def __init__(self, work: Work, how: Pass) -> None:
        self.work, self.how = work, how

    def at(self, index: Val, number: int) -> Val:
        """The terms of the block at `index`, which has a number in its group."""
        return self.how.term(self.work.load(index))


class _StagedTerms(_Terms):
    """Terms of block after block, each begun while those before are finished.

    Each cut lies between a block and the one before it, or that of the group before where there are registers enough.
    """

    def __init__(self, work: Work, how: Pass, begin: Val, end: Val) -> None:
        super().__init__(work, how)
        assert how.stages is not None
        k, self.last, self.stages = work.k, end - LANES, how.stages
        self.apart = GROUP if k.cpu.wide else 1
        self._held: list[list[list[Var]]] = []
        with k.when(begin < end):
            cuts = len(self._cut_values(begin))
            for cut in range(cuts):
                first = (cuts - 1 - cut) * self.apart
                places = [k.minimum(begin + (first + block) * LANES, self.last) for block in range(self.apart)]
                self._held.append([[k.var(value) for value in self._cut_values(at)[cut]] for at in places])

    def _cut_values(self, index: Val) -> list[tuple[Val, ...]]:
        """The values of one block at each cut (LLVM leaves out those that nothing needs)."""
        found: list[tuple[Val, ...]] = []

        def keep(_cut: int, values: tuple[Val, ...]) -> tuple[Val, ...]:
            found.append(values)
            return values

        vmath.passed(self.stages(self.work.load(index)), keep)
        return found

    def at(self, index: Val, number: int) -> Val:
        late = len(self._held) * self.apart
        following = index + late * LANES
        following = self.work.k.minimum(following, self.last) if number + late >= GROUP else following

        def hand_on(cut: int, values: tuple[Val, ...]) -> tuple[Val, ...]:
            slots = self._held[cut][number % self.apart]
            before = tuple(slot.get() for slot in slots)
            for slot, value in zip(slots, values, strict=True):
                slot.set(value)
            return before

        return vmath.passed(self.stages(self.work.load(following)), hand_on)


def reduced(work: Work, how: Pass, ahead: str = "") -> Totals:
    """A whole row folded to its sums, in every lane."""
    sums = Sums(work, how)
    sums.take_groups(work.k.const(0), work.groups, ahead)
    return _finished([sums])[0]


def _reduced_together(works: Sequence[Straight], hows: Sequence[Pass], ahead: bool = False) -> list[Totals]:
    """As `reduced`, of rows beside each other: each has its own chain of dependent operations."""
    sums = [Sums(work, how) for work, how in zip(works, hows, strict=True)]
    k, groups = works[0].k, works[0].groups
    with k.loop(groups, step=LANES * GROUP) as i:
        for work in works if ahead else ():
            work.ahead_beside(i, len(works))
        for each in sums:
            each.take_group(_Terms(each.work, each.how), i)
    return _finished(sums)


def _finished(sums: Sequence[Sums]) -> list[Totals]:
    """Totals of rows whose whole groups have been taken."""
    work = sums[0].work
    with work.k.loop(work.blocks, start=work.groups, step=LANES) as i:
        for each in sums:
            each.take_block(i)
    with work.k.when(work.blocks < work.count):
        for each in sums:
            each.take_rest()
    return [each.folded() for each in sums]


def fold_lanes(k: Kernel, x: Val, combine: Combine) -> Val:
    """Combine the lanes of a vector in pairs and spread the result over all of them."""
    for step in (8, 4, 2, 1):
        x = combine(x, k.shuffle(x, x, [(lane + step) % LANES for lane in range(LANES)]))
    # All lanes are the same, which whoever allots registers should know.
    return k.splat(k.extract(x, 0))


def outer_offsets(k: Kernel, desc: Val, number: Val) -> tuple[Val, Val]:
    """Byte offsets of a row of the source and of the target."""
    last = OUTER - 1
    source = k.var(number * k.field(desc, SOURCE + 1 + last))
    target = k.var(number * k.field(desc, TARGET + 1 + last))
    with k.when(number >= k.field(desc, DIMS + last)):
        rest = number
        source.set(k.const(0))
        target.set(k.const(0))
        for a in reversed(range(OUTER)):
            n = k.field(desc, DIMS + a)
            index = rest % n
            rest = rest / n
            source.set(source.get() + index * k.field(desc, SOURCE + 1 + a))
            target.set(target.get() + index * k.field(desc, TARGET + 1 + a))
    return source.get(), target.get()


class Operator(Protocol):
    """The passes of an operator: `first` (None where there is none) gives `settle` its total, `second` gives `put` its
    totals, of which there are so many `sums`. Short rows go by so many `beside` each other where `may_beside` says so.

    `results` makes what `put` stores, of whole groups of blocks; `ahead` is the memory that each pass asks for, and
    `leaves` says that the second one keeps its terms for them.
    Where it is `sampled`, a few blocks of a long row stand in for the first pass, unless a second one whose total is
    not below `most` shows that they were not like the others.
    """

    ahead: tuple[str, str, str]
    leaves: bool
    sampled: bool
    most: float
    sums: int
    beside: int

    def may_beside(self, desc: Val) -> Val: ...

    def first(self, work: Work) -> Pass | None: ...

    def settle(self, work: Work, total: Val) -> Val: ...

    def second(self, work: Work, settled: Val) -> Pass: ...

    def results(self, work: Work, settled: Val, totals: Totals) -> Callable[[Val, Val], Val]: ...

    def put(self, work: Work, settled: Val, totals: Totals) -> None: ...


def emit_row(work: Work, operator: Operator) -> None:
    """An operator over one row, pass after pass."""
    k, first = work.k, operator.first(work)
    if first is None or not operator.sampled:
        start = k.const(0.0, vec(F32)) if first is None else reduced(work, first, operator.ahead[0])[0]
        settled = operator.settle(work, start)
        operator.put(work, settled, reduced(work, operator.second(work, settled), operator.ahead[1]))
        return
    begin, total, whole = k.var(0.0, vec(F32)), k.var(0.0, vec(F32)), k.var(work.count < SAMPLED)
    with k.while_() as attempt:
        with k.either(whole.get()) as (all_blocks, some):
            with all_blocks:
                begin.set(reduced(work, first, operator.ahead[0])[0])
            with some:
                begin.set(sample(work, first))
        total.set(reduced(work, operator.second(work, operator.settle(work, begin.get())), operator.ahead[1])[0])
        attempt.stop_if(whole.get() | fits(total.get(), operator))
        work.read()
        whole.set(k.const(1, I1))
    operator.put(work, operator.settle(work, begin.get()), (total.get(),))


def emit_rows(works: Sequence[Straight], operator: Operator) -> None:
    """An operator over short rows beside each other, without saturation: what waits for the end of one row's pass then
    leaves the CPU those of the others."""
    k, hows = works[0].k, [operator.first(work) for work in works]
    starts: list[Totals] = [(k.const(0.0, vec(F32)),)] * len(works)
    if hows[0] is not None:
        starts = _reduced_together(works, [how for how in hows if how is not None])
    settled = [operator.settle(work, start[0]) for work, start in zip(works, starts, strict=True)]
    seconds = [operator.second(work, value) for work, value in zip(works, settled, strict=True)]
    totals = _reduced_together(works, seconds, ahead=True)
    values = [operator.results(*made) for made in zip(works, settled, totals, strict=True)]
    work, rows = works[0], list(zip(works, values, strict=True))
    with k.loop(work.groups, step=LANES * GROUP) as i:
        made = [(each, each.make_group(value, i)) for each, value in rows]
        for each, results in made:
            each.store_group(results, i)
    with k.loop(work.blocks, start=work.groups, step=LANES) as i:
        for each, value in rows:
            each.store_block(value(i, each.load(i)), i)
    with k.when(work.rest > 0):
        for each, value in rows:
            each.store_rest(value(each.blocks, each.load_rest()))


def sample(work: Work, how: Pass) -> Val:
    """A pass over a few blocks all along a row of at least `SAMPLED` elements, in every lane."""
    step = work.count / (_SAMPLES * LANES) * LANES
    blocks = [work.load(step * number) for number in range(_SAMPLES)]
    while len(blocks) > 1:
        blocks = [how.combine(a, b) for a, b in zip(blocks[::2], blocks[1::2], strict=True)]
    return fold_lanes(work.k, blocks[0], how.combine)


def fits(total: Val, operator: Operator) -> Val:
    """Whether the start of a second pass was near enough to what the whole row would have given (False for NaN)."""
    return total.k.extract(total, 0) < operator.most


def _plus(a: Val, b: Val) -> Val:
    return a + b


def samples(source: str, target: str, kind: str) -> bool:
    """Whether a softmax sums shares, which may start from any element near the largest, as exponentials may not."""
    return kind == "plain" and (source == "f16" or target != "f16")


class Softmax:
    """Softmax, or its logarithm: largest element, sum of exponentials, quotients."""

    ahead, sums = ("target", "source", ""), 1
    most = vmath.SHARES_MOST

    def __init__(self, k: Kernel, source: str, target: str, kind: str) -> None:
        self.k, self.log, self.beside = k, kind == "log", BESIDE_MOST if k.cpu.wide else 2
        self._half, self.leaves = (target, kind) == ("f16", "plain"), kind == "plain"
        self.sampled = samples(source, target, kind)
        # Where shares are rounded to f16, short terms; f16 elements need no difference that is rounded by itself.
        self._share = vmath.half_share if self._half else vmath.share
        self._exponential = vmath.half_exp if self._half else vmath.exp

    def may_beside(self, desc: Val) -> Val:
        """Whatever the task."""
        return self.k.const(1, I1)

    def maximum(self, a: Val, b: Val) -> Val:
        """The larger of a and b; a NaN in b is left out (the sum of exponentials brings it back)."""
        return self.k.select(b > a, b, a)

    def terms(self, x: Val, top: Val) -> vmath.Stages:
        """Exponentials, up to a factor common to the row."""
        if self.sampled:
            return self._share.stages(self.k, x, top)
        return self._exponential.stages(self.k, x - top, positive=False)

    def term(self, x: Val, top: Val) -> Val:
        """The same in one piece."""
        return vmath.whole(self.terms(x, top))

    def first(self, work: Work) -> Pass:
        return Pass(float("-inf"), lambda top, x, _i: (self.maximum(top[0], x),), self.maximum)

    def settle(self, work: Work, total: Val) -> Val:
        return total

    def second(self, work: Work, settled: Val) -> Pass:
        def add(total: Totals, e: Val, index: Val) -> Totals:
            if not self.log:
                self.k.store(e, work.kept(index))
            return (total[0] + e,)

        overlaps = (self._share if self.sampled else self._exponential).overlaps(self.k)
        return Pass(0.0, add, _plus, lambda x: self.terms(x, settled), overlaps, ways=2)

    def results(self, work: Work, settled: Val, totals: Totals) -> Callable[[Val, Val], Val]:
        scale = self.scale(totals[0])
        if self.log:
            return lambda _i, x: (x - settled) - scale
        return lambda i, _x: self.k.load(work.kept(i), vec(F32)) * scale

    def put(self, work: Work, settled: Val, totals: Totals) -> None:
        work.put_all(self.results(work, settled, totals), self.ahead[2])

    def scale(self, total: Val) -> Val:
        """What terms are multiplied by, or their logarithms less."""
        return vmath.log(self.k, total) if self.log else 1.0 / total


class Norm:
    """Layer norm, or RMS norm without the mean: mean, variance, scaled and shifted elements.

    The mean of fp32 elements is one of two numbers: the rounding of the first is large where it is far above their
    spread. What it left is the mean of the differences to it, which the second pass sums beside their squares. Those to
    a mean of shorter elements are exact where that matters.
    """

    ahead, leaves = ("again", "target", "after"), False
    sampled, most, beside = False, 0.0, 2

    def __init__(self, k: Kernel, source: str, parameters: str, kind: str) -> None:
        self.k, self.dtype, self.rms = k, parameters, kind == "rms"
        self.sums = 2 if source == "f32" and not self.rms else 1

    def may_beside(self, desc: Val) -> Val:
        """Whether results need no general form."""
        return self.k.field(desc, GAMMA).ne(0) & self.k.field(desc, BETA).ne(0)

    def _length(self, work: Work) -> Val:
        return self.k.splat(self.k.convert(work.count, "sitofp", F32))

    def first(self, work: Work) -> Pass | None:
        return None if self.rms else Pass(0.0, lambda total, x, _i: (self.k.plus(x, total[0]),), _plus)

    def settle(self, work: Work, total: Val) -> Val:
        return total if self.rms else total / self._length(work)

    def second(self, work: Work, settled: Val) -> Pass:
        def add(totals: Totals, x: Val, _index: Val) -> Totals:
            d = self.k.plus(x, -settled)
            return self.k.fma(d, d, totals[0]), *(total + d for total in totals[1:])

        return Pass(0.0, add, _plus, sums=self.sums)

    def _normalised(self, work: Work, settled: Val, totals: Totals) -> Callable[[Val], Val]:
        k, length = self.k, self._length(work)
        variance, left = totals[0] / length, [total / length for total in totals[1:]]
        for mean in left:
            variance = variance - mean * mean
            variance = k.select(variance < 0.0, 0.0, variance)
        scale = 1.0 / vmath.sqrt(k, variance + k.splat(k.float_field(work.desc, EPSILON)))

        def normalised(x: Val) -> Val:
            # Not one fma by `-settled * scale`: that shift, and its rounding, are huge where the spread is small.
            d = k.plus(x, -settled)
            for mean in left:
                d = d - mean
            return d * scale

        return normalised

    def results(self, work: Work, settled: Val, totals: Totals) -> Callable[[Val, Val], Val]:
        k, dtype, normalised = self.k, self.dtype, self._normalised(work, settled, totals)
        gamma, beta = k.field(work.desc, GAMMA), k.field(work.desc, BETA)

        def result(i: Val, x: Val) -> Val:
            at, live = i * SIZE[dtype], work.live() if i is work.blocks else None
            scale, shift = (k.load_f32(place + at, dtype, live=live) for place in (gamma, beta))
            return k.fma(normalised(x), scale, shift)

        return result

    def put(self, work: Work, settled: Val, totals: Totals) -> None:
        k = self.k
        whole = k.const(1, I1) if work.single_lanes else (work.count & (LANES - 1)).eq(0)
        with k.either(self.may_beside(work.desc) & whole) as (both, other):
            with both:
                work.put_all(self.results(work, settled, totals), self.ahead[2])
            with other:
                work.put_all(self._general(work, self._normalised(work, settled, totals)), self.ahead[2])

    def _general(self, work: Work, normalised: Callable[[Val], Val]) -> Callable[[Val, Val], Val]:
        """Results without gamma or beta, and of fewer than 16 lanes."""
        k, dtype, size, spare = self.k, self.dtype, SIZE[self.dtype], self.k.alloca(LANES * 4)

        def factor(field: int, neutral: float, i: Val) -> Val:
            left, source, value = k.minimum(work.count - i, LANES), k.field(work.desc, field), k.var(neutral, vec(F32))
            with k.when(source.ne(0)):
                at = k.var(source + i * size)
                with k.when(left < LANES):
                    with k.loop(left * size) as byte:
                        k.store(k.load(source + i * size + byte, I8), spare + byte)
                    at.set(spare)
                value.set(k.load_f32(at.get(), dtype))
            return value.get()

        return lambda i, x: k.fma(normalised(x), factor(GAMMA, 1.0, i), factor(BETA, -0.0, i))
