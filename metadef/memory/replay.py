"""The checker's loops: who holds which bytes when, what meets inside one step, and what runs unordered.

Plain functions over flat sequences of touches; small schedules run them as they are on lists, large ones compiled on
arrays. Addresses are ranks: every border of a touch has a number, ascending by address, each memory space with numbers
of its own. ``family`` of an owner is a number, ``linked`` holds the sorted codes ``one * families + other`` of families
that may own each other's bytes. All give how many entries of ``found`` they filled; what no longer fits is left out.
"""

from __future__ import annotations

from metadef.memory.loops import helper, run

__all__ = ["clocks", "follow_bytes", "meetings", "races", "run"]

NOBODY, NO_MARK = -1, -2
BLOCK_BITS = 8


@helper
def _is_linked(linked, code):
    """Whether a code is among the sorted ones."""
    low, high = 0, len(linked)
    while low < high:
        middle = (low + high) // 2
        if linked[middle] < code:
            low = middle + 1
        else:
            high = middle
    return low < len(linked) and linked[low] == code


def clocks(stream, wait_counts, waits, record_counts, records, latest, recorded, known):
    """``known[i, s]``: the last step of stream s that surely ends before step i (-1: none).

    ``latest`` holds, for each stream, what has ended with its last step, ``recorded`` the same for each event; both
    start at -1, as ``known`` does.
    """
    wait, record, width = 0, 0, known.shape[1]
    for i in range(len(stream)):
        mine = stream[i]
        for s in range(width):
            known[i, s] = latest[mine, s]
        for _ in range(wait_counts[i]):
            for s in range(width):
                known[i, s] = max(known[i, s], recorded[waits[wait], s])
            wait += 1
        for s in range(width):
            latest[mine, s] = known[i, s]
        latest[mine, mine] = i
        for _ in range(record_counts[i]):
            for s in range(width):
                recorded[records[record], s] = max(recorded[records[record], s], latest[mine, s])
            record += 1
    return 0


def follow_bytes(owner, low, high, reads, writes, family_of, linked, families, marks, blocks, found, holders):
    """Touch after touch over a map of bytes -> owner; finds reads that meet another family's bytes, or nobody's.

    ``marks`` holds, at each border where the owner changes, who owns the bytes from there on; ``blocks`` counts the
    marks of 256 borders each. ``found`` gets the touch, ``holders`` the owner that it met.
    """
    count = 0
    for k in range(len(owner)):
        mine, at = family_of[owner[k]], low[k]
        while marks[at] == NO_MARK:
            if blocks[at >> BLOCK_BITS]:
                at -= 1
            else:
                at = (at >> BLOCK_BITS << BLOCK_BITS) - 1
        holder, at, empty, own = marks[at], low[k], False, False
        while True:
            if reads[k] and holder == NOBODY:
                empty = True
            elif reads[k]:
                right = family_of[holder] == mine
                right = right or _is_linked(linked, mine * families + family_of[holder])
                own = own or right
                if not right and count < len(found):
                    found[count], holders[count] = k, holder
                    count += 1
            at += 1
            while at < high[k] and marks[at] == NO_MARK:
                at = at + 1 if blocks[at >> BLOCK_BITS] else (at >> BLOCK_BITS) + 1 << BLOCK_BITS
            if at >= high[k]:
                break
            holder = marks[at]
            if writes[k]:
                marks[at] = NO_MARK
                blocks[at >> BLOCK_BITS] -= 1
        if empty and not own and count < len(found):
            found[count], holders[count] = k, NOBODY
            count += 1
        if writes[k]:
            if marks[high[k]] == NO_MARK:
                marks[high[k]] = holder
                blocks[high[k] >> BLOCK_BITS] += 1
            if marks[low[k]] == NO_MARK:
                blocks[low[k] >> BLOCK_BITS] += 1
            marks[low[k]] = owner[k]
    return count


def meetings(step, low, high, writes, family, linked, families, found, others):
    """Pairs of touches of one step that share bytes, the later one a write, of families that may not share them."""
    count, start = 0, 0
    for k in range(len(step)):
        if step[start] != step[k]:
            start = k
        if not writes[k]:
            continue
        for i in range(start, k):
            if high[i] <= low[k] or high[k] <= low[i] or family[i] == family[k]:
                continue
            if _is_linked(linked, family[i] * families + family[k]):
                continue
            if count < len(found):
                found[count], others[count] = i, k
                count += 1
    return count


def races(step, stream, clocks, before, latest, low, high, writes, family, linked, families, found, others):
    """Pairs of touches by unordered steps of two streams that share bytes, one a write, of families that may not.

    ``clocks[i, s]`` is the last step of stream s that surely ends before step i (-1: none). ``before``, by touch, and
    ``latest``, by stream, hold -1.
    """
    count, streams = 0, clocks.shape[1]
    for k in range(len(step)):
        for s in range(streams):
            if s == stream[k]:
                continue
            i = latest[s]
            while i >= 0 and step[i] > clocks[step[k], s]:
                clash = low[k] < high[i] and low[i] < high[k] and (writes[k] or writes[i]) and family[i] != family[k]
                if clash and count < len(found) and not _is_linked(linked, family[k] * families + family[i]):
                    found[count], others[count] = i, k
                    count += 1
                i = before[i]
        before[k] = latest[stream[k]]
        latest[stream[k]] = k
    return count
