"""The planner's loops: happens-before of steps, lives of contiguous groups, bodies joined at fixed distances.

See ``loops`` for how they run. A reach is a row of two arrays, ``latest`` (the last touching step on each stream) and
``known`` (the last step of each stream that surely ends before all of them); rows are empty where all steps are in one
order.
"""

from __future__ import annotations

from metadef.memory.columns import FREE
from metadef.memory.loops import helper

NO_STEP = -1
LARGEST_GRID, LARGEST_FACTOR = 1 << 62, 1 << 31
SKIPPED, TAKEN, APART, MIXED, STUCK = range(5)
"""What became of a request to join; the last three are faults of what must be joined: the two are one body at another
distance, one is a weight and the other is none, or grids, pins or pools do not agree."""


def order_steps(stream, wait_start, waits, record_start, records, recorded, latest, clocks):
    """Fill ``clocks[i, s]``, the last step of stream s that surely ends before step i (-1: none).

    ``recorded``, by event, and ``latest``, by stream, hold -1. Gives the position in ``waits`` of an event that no
    earlier step records, or -1.
    """
    width = clocks.shape[1]
    for i in range(len(stream)):
        before = latest[stream[i]]
        if before >= 0:
            for s in range(width):
                clocks[i, s] = clocks[before, s]
            clocks[i, stream[i]] = before
        for k in range(wait_start[i], wait_start[i + 1]):
            source = recorded[waits[k]]
            if source < 0:
                return k
            for s in range(width):
                clocks[i, s] = max(clocks[i, s], clocks[source, s])
            clocks[i, stream[source]] = max(clocks[i, stream[source]], source)
        for k in range(record_start[i], record_start[i + 1]):
            recorded[records[k]] = i
        latest[stream[i]] = i
    return -1


@helper
def _join_reach(latest, known, one, other):
    for s in range(latest.shape[1]):
        latest[one, s] = max(latest[one, s], latest[other, s])
        known[one, s] = min(known[one, s], known[other, s])


def extend_groups(parents, starts, members, written, first, last, label, latest, known):
    """A parent nobody writes is written through its members; a member nobody writes is written through its parent."""
    for g in range(len(parents)):
        parent, begin, end = parents[g], starts[g], starts[g + 1]
        if not written[parent]:
            first[parent] = first[members[begin]] if end > begin else 0
            for k in range(begin, end):
                member = members[k]
                last[member] = max(last[member], last[parent])
                _join_reach(latest, known, member, parent)
                first[parent] = min(first[parent], first[member])
            for k in range(begin, end):
                _join_reach(latest, known, parent, members[k])
            label[parent] = 0
        for k in range(begin, end):
            member = members[k]
            if not written[member]:
                first[member], last[member] = first[parent], max(last[member], last[parent])
                _join_reach(latest, known, member, parent)
                last[parent] = max(last[parent], last[member])
                _join_reach(latest, known, parent, member)
    return 0


@helper
def _find(home, shift, body):
    """The body that another one has become part of; from then on ``shift`` is the distance between their origins."""
    root, total, at = body, 0, body
    while home[root] != root:
        total += shift[root]
        root = home[root]
    while at != root:
        above, step = home[at], shift[at]
        home[at], shift[at] = root, total
        total -= step
        at = above
    return root


@helper
def _common_grid(m1, r1, m2, r2):
    """Modulus and residue of the offsets that are on both grids; modulus 0 if there are none."""
    if m1 == m2:
        return (m1, r1) if r1 == r2 else (0, 0)
    shared, rest = m1, m2
    while rest:
        shared, rest = rest, shared % rest
    parts, factor = m2 // shared, m1 // shared
    if (r2 - r1) % shared or factor > LARGEST_GRID // m2 or (parts > LARGEST_FACTOR and factor % parts != 1):
        return 0, 0
    inverse, follow, old, new = 0, 1, parts, factor % parts
    while new:
        turns = old // new
        old, new = new, old - turns * new
        inverse, follow = follow, inverse - turns * follow
    return factor * m2, r1 + (r2 - r1) // shared % parts * (inverse % parts) % parts * m1


@helper
def _collide(rects, reach, one, other, distance, place, step):
    """Whether two bodies at this distance would overlap, apart from handing bytes over at the in-place step."""
    head, _, after, rel, size, first, last, label = rects
    latest, known, apart = reach
    streams, a = latest.shape[1], head[one]
    while a >= 0:
        b = head[other]
        while b >= 0:
            at = rel[b] + distance
            meet = size[a] > 0 and size[b] > 0 and at < rel[a] + size[a] and rel[a] < at + size[b]
            if meet and not (rel[a] == at and at == place and last[a] == step and first[b] == step):
                meet = not apart[label[a], label[b]]
                if streams == 0:
                    meet = meet and first[a] <= last[b] and first[b] <= last[a]
                else:
                    ordered, turned = True, True
                    for s in range(streams):
                        ordered = ordered and latest[a, s] <= known[b, s]
                        turned = turned and latest[b, s] <= known[a, s]
                    meet = meet and not (ordered or turned)
                if meet:
                    return True
            b = after[b]
        a = after[a]
    return False


@helper
def _absorb(rects, reach, one, other, distance):
    """Rectangles of ``other`` become those of ``one``; over the same bytes, lives that overlap become one."""
    head, tail, after, rel, size, first, last, label = rects
    b = head[other]
    while b >= 0:
        rest, target, q, before = after[b], b, head[one], -1
        rel[b] += distance
        after[b] = -1
        while q >= 0:
            following = after[q]
            same = rel[q] == rel[b] and size[q] == size[b] and label[q] == label[b]
            if same and first[q] <= last[target] and first[target] <= last[q]:
                kept, gone = (q, b) if target == b else (target, q)
                first[kept], last[kept] = min(first[kept], first[gone]), max(last[kept], last[gone])
                _join_reach(reach[0], reach[1], kept, gone)
                target = kept
                if gone == q:
                    after[before] = following
                    tail[one] = before if following < 0 else tail[one]
                else:
                    before = q
            else:
                before = q
            q = following
        if target == b:
            if tail[one] < 0:
                head[one] = b
            else:
                after[tail[one]] = b
            tail[one] = b
        b = rest


@helper
def _settle(bodies, one, other, distance):
    """Grid, pin, pool and region of two bodies at this distance, if they agree; whether they do."""
    _, _, low, high, modulus, residue, pin, pool, region = bodies
    grid, left = _common_grid(modulus[one], residue[one], modulus[other], (residue[other] - distance) % modulus[other])
    at = FREE if pin[other] == FREE else pin[other] - distance
    if pin[one] != FREE:
        if at != FREE and at != pin[one]:
            return False
        at = pin[one]
    if pool[one] != pool[other] or grid == 0 or (at != FREE and (at - left) % grid != 0):
        return False
    modulus[one], residue[one], pin[one], region[one] = grid, left, at, min(region[one], region[other])
    low[one], high[one] = min(low[one], low[other] + distance), max(high[one], high[other] + distance)
    return True


def join(requests, bodies, rects, reach, flags, start, order):
    """Join bodies, request by request, where that can be; then lay their rectangles out, body by body.

    ``requests`` = (body, other body, distance of their origins, place of the handed-over bytes, step, tensor read,
    tensor written). What has no step must be joined: the first that cannot be ends the run, and its number is given
    (else -1). A permission is left out if its tensors are used or the joined body would overlap itself. ``bodies`` =
    (home, shift, low, high, modulus, residue, pin, pool, region) with bytes counted from the body's origin, ``rects`` =
    (head, tail, after, rel, size, first, last, label): lists of rectangles by body. ``order[start[i]:start[i + 1]]``
    gets those of body i.
    """
    anchor, added, distance, place, steps, reader, writer = requests
    home, shift, low = bodies[0], bodies[1], bodies[2]
    used_read, used_write, result = flags
    for r in range(len(anchor)):
        step = steps[r]
        if step >= 0 and (used_read[reader[r]] or used_write[writer[r]]):
            continue
        one, other = _find(home, shift, anchor[r]), _find(home, shift, added[r])
        apart = shift[anchor[r]] + distance[r] - shift[added[r]]
        if one == other:
            result[r] = APART if step < 0 and apart != 0 else SKIPPED
        elif step < 0 and (bodies[8][one] == 0) != (bodies[8][other] == 0):
            result[r] = MIXED
        elif step >= 0 and _collide(rects, reach, one, other, apart, shift[anchor[r]] + place[r], step):
            result[r] = SKIPPED
        elif not _settle(bodies, one, other, apart):
            result[r] = STUCK if step < 0 else SKIPPED
        else:
            result[r] = TAKEN
            _absorb(rects, reach, one, other, apart)
            home[other], shift[other] = one, apart
            if step >= 0:
                used_read[reader[r]], used_write[writer[r]] = True, True
        if result[r] > TAKEN:
            return r
    count = 0
    for i in range(len(home)):
        start[i] = count
        if _find(home, shift, i) == i:
            k = rects[0][i]
            while k >= 0:
                order[count] = k
                rects[3][k] -= low[i]
                count += 1
                k = rects[2][k]
    start[len(home)] = count
    return -1


def live_bytes(start, rel, size, first, last, label, exists, marks, change):
    """Add to ``change`` where the bytes covered by each body's rectangles, sorted by place, rise and fall.

    ``exists`` says which labels do; ``marks`` is scratch for twice the rectangles of a body.
    """
    for body in range(len(start) - 1):
        count = 0
        for r in range(start[body], start[body + 1]):
            if size[r] > 0 and exists[label[r]]:
                for mark in (first[r], last[r] + 1):
                    place = count
                    while place > 0 and marks[place - 1] > mark:
                        marks[place] = marks[place - 1]
                        place -= 1
                    marks[place] = mark
                    count += 1
        for k in range(count - 1):
            step, covered, top = marks[k], 0, 0
            for r in range(start[body], start[body + 1]):
                if first[r] <= step <= last[r] and exists[label[r]] and rel[r] + size[r] > top:
                    covered += rel[r] + size[r] - max(rel[r], top)
                    top = rel[r] + size[r]
            if marks[k + 1] > step:
                change[step] += covered
                change[marks[k + 1]] -= covered
    return 0


def stack(extent, modulus, residue, pin, cursor, offsets):
    """One body above the other from ``cursor`` on, each on its grid; pinned and empty ones stay where they are."""
    for i in range(len(extent)):
        if pin[i] == FREE and extent[i] > 0:
            offsets[i] = cursor + (residue[i] - cursor) % modulus[i]
            cursor = offsets[i] + extent[i]
    return 0
