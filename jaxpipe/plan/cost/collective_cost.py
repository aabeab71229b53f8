"""Seconds of collectives on alpha-beta links: of any from its transfers, of some in closed form.

`transfers_s` prices the very messages that ranks send, whatever the algorithm. The planner ranks
thousands of sync trees, and so prices all-reduces along them in closed form (`all_reduce_s`). On p
equal links of latency a and b seconds per byte, n bytes take:

    ============== ==================================== ============================================
    ring           2 (p - 1) (a + n b / p)               reduce-scatter, then all-gather
    tree           2 (a + (q - 1) n b / c) for each      islands of q members first, in c chunks,
                   level, + (c - 1) (q - 1) n b / c      each of which turns round at once
    shares         2 (a + (p - 1) n b / p)               each member reduces one share for all
    islands of     2 (a + (q - 1) n b / q)               shares inside, then those of each share
    shares         + 2 (a + (r - 1) n b / (q r))         across r islands of q members
    ============== ==================================== ============================================

Where links differ, the closed forms take the slowest message of each round. Here a port is as slow
as its links (`jaxpipe.network.alpha_beta`); faster ones take (q - 1) messages at once. Adding takes
no time.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005; Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

from collections import defaultdict
from collections.abc import Sequence
from enum import IntEnum
from heapq import heappop, heappush
from math import inf
from typing import NamedTuple

import numpy as np

from jaxpipe.collective import (
    AllReduceKind,
    Collective,
    SyncTree,
    all_reduce_transfers,
    ranks,
    to_leaders,
)
from jaxpipe.collective.algorithms import num_chunks
from jaxpipe.collective.all_reduce_facts import ClosedForm
from jaxpipe.collective.sync_tree import folded
from jaxpipe.network.alpha_beta import Links, served_s


def transfers_s(links: Links, collective: Collective) -> float:
    """Return the seconds until the last transfer between the members of `links` has arrived.

    A transfer leaves when all that it waits for has arrived. Each member has one port out and one
    port in, which move one message at a time: out in the order in which messages become ready, in
    in the order in which their first bytes arrive.

    >>> from jaxpipe.collective import AllReduceKind, all_reduce_transfers
    >>> from jaxpipe.network.alpha_beta import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> tree = ((0, 1), (2, 3))
    >>> transfers_s(links, all_reduce_transfers(AllReduceKind.HIERARCHICAL, tree, num_bytes=8.0))
    15.0
    """
    waiting = [len(transfer.after) for transfer in collective]
    users: defaultdict[int, list[int]] = defaultdict(list)
    for position, transfer in enumerate(collective):
        for need in transfer.after:
            users[need].append(position)
    events = [(0.0, _Event.READY, n) for n, count in enumerate(waiting) if not count]
    out_free_s: defaultdict[int, float] = defaultdict(float)
    in_free_s: defaultdict[int, float] = defaultdict(float)
    now_s = 0.0
    while events:
        # Of equal times and events the lower position is first: results are the same in every run.
        now_s, event, position = heappop(events)
        transfer = collective[position]
        wire_s = links.wire_s(transfer.source, transfer.destination, num_bytes=transfer.num_bytes)
        if event is _Event.READY:
            start_s = max(now_s, out_free_s[transfer.source])
            out_free_s[transfer.source] = start_s + wire_s  # the latency does not occupy the port
            latency_s = float(links.latency_s[transfer.source, transfer.destination])
            heappush(events, (start_s + latency_s, _Event.FIRST_BYTE, position))
        elif event is _Event.FIRST_BYTE:
            # Cut-through: bytes enter as fast as they left, so the wire counts once for both ports.
            end_s = max(now_s, in_free_s[transfer.destination]) + wire_s
            in_free_s[transfer.destination] = end_s
            heappush(events, (end_s, _Event.LAST_BYTE, position))
        else:
            for user in users[position]:
                waiting[user] -= 1
                if not waiting[user]:
                    heappush(events, (now_s, _Event.READY, user))
    return now_s  # of an arrival: any other event pushes a later one


class _Event(IntEnum):
    """What happens to a transfer; at one time, ports become free before they are taken."""

    LAST_BYTE = 0
    READY = 1
    FIRST_BYTE = 2


def ring_s(links: Links, *, num_bytes: float) -> float:
    """Return the seconds of 2 (p - 1) rounds, in each of which every member sends a p-th.

    A round takes as long as its slowest message.

    >>> from jaxpipe.network.alpha_beta import uniform_links
    >>> ring_s(uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0), num_bytes=8)
    18.0
    """
    size = len(links)
    slowest = max(
        links.message_s(member, (member + 1) % size, num_bytes=num_bytes / size)
        for member in range(size)
    )
    return 2 * (size - 1) * slowest


def tree_s(links: Links, tree: SyncTree, *, num_bytes: float, chunk_bytes: float = inf) -> float:
    """Return the seconds of an all-reduce along a sync tree over the members.

    The leaders of an island's members send to its leader as soon as they have their own sums; it
    takes them as they come, when its own island is done. Down again it serves the last member
    first. Chunks of `chunk_bytes` follow each other up and down at once: of all but one chunk only
    what it takes of the busiest port, or of the slowest link, counts.

    >>> from jaxpipe.network.alpha_beta import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> tree_s(links, ((0, 1), (2, 3)), num_bytes=2)
    12.0
    >>> tree_s(links, ((0, 1), (2, 3)), num_bytes=2, chunk_bytes=1)
    10.0
    """
    chunks = num_chunks(
        AllReduceKind.TREE, num_ranks=len(ranks(tree)), size=num_bytes, message_size=chunk_bytes
    )
    chunk = num_bytes / chunks
    # The first chunk takes the whole path; each later one adds its time at the busiest port.
    first_s = _ascent_s(links, tree, chunk) + _descent_s(links, tree, chunk)
    return first_s + (chunks - 1) * _busiest_s(links, tree, chunk)


def all_reduce_s(
    kind: AllReduceKind,
    links: Links,
    tree: SyncTree,
    *,
    num_bytes: float,
    chunk_bytes: float = inf,
) -> float:
    """Return the seconds of an all-reduce of a kind over the members of a sync tree.

    A kind without a closed form takes the seconds of its messages. Halving counts as shares, which
    it exceeds if the number of members is no power of two.

    >>> from jaxpipe.network.alpha_beta import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> all_reduce_s(AllReduceKind.SHARDED, links, (0, 1, 2, 3), num_bytes=8)
    14.0
    >>> all_reduce_s(AllReduceKind.HIERARCHICAL, links, ((0, 1), (2, 3)), num_bytes=8)
    16.0
    """
    members = ranks(tree)
    if len(members) == 1:
        return 0.0
    match kind.facts.closed_form:
        case ClosedForm.TREE:
            return tree_s(links, tree, num_bytes=num_bytes, chunk_bytes=chunk_bytes)
        case ClosedForm.RING:
            return ring_s(links.of(members), num_bytes=num_bytes)
        case ClosedForm.ISLANDS:
            return _islands_s(links, tree, num_bytes)
        case ClosedForm.SHARES:
            return _shares_s(links, members, num_bytes)
        case None:
            messages = all_reduce_transfers(
                kind, tree, num_bytes=num_bytes, chunk_bytes=chunk_bytes
            )
            return transfers_s(links, messages)


def _islands_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    if isinstance(tree, int):
        return 0.0
    islands = [ranks(child) for child in tree]
    inside_s = max(_islands_s(links, child, num_bytes) for child in tree)
    # A member of the smallest island has the largest share to exchange with the others.
    share = num_bytes / min(map(len, islands))
    return inside_s + _shares_s(links, tuple(island[0] for island in islands), share)


def _shares_s(links: Links, members: Sequence[int], num_bytes: float) -> float:
    """Return the seconds in which each member reduces a share for all others and returns it."""
    links_of, share = links.of(members), num_bytes / len(members)
    apart = ~np.eye(len(members), dtype=bool)
    wire_s, each_s = (
        np.where(apart, matrix, 0.0) * share
        for matrix in (links_of.seconds_per_byte, links_of.port_s_per_byte)
    )
    port_s = max(each_s.sum(axis=0).max(), each_s.sum(axis=1).max())
    return 2 * float(max(links_of.latency_s.max() + port_s, (links_of.latency_s + wire_s).max()))


def _busiest_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    """Return the seconds that a chunk takes of the busiest port, or of the slowest link."""
    taken_s: dict[int, float] = defaultdict(float)
    given_s: dict[int, float] = defaultdict(float)
    slowest_s = 0.0
    for child, parent in to_leaders(tree):
        taken_s[parent] += links.port_s(child, parent, num_bytes=num_bytes)
        given_s[parent] += links.port_s(parent, child, num_bytes=num_bytes)
        for pair in ((child, parent), (parent, child)):
            slowest_s = max(slowest_s, links.wire_s(*pair, num_bytes=num_bytes))
    return max((slowest_s, *taken_s.values(), *given_s.values()))


class _Timed(NamedTuple):
    """The leader of a tree, and the seconds of an ascent to it or a descent from it."""

    leader: int
    seconds: float


def _at_rank(rank: int) -> _Timed:
    return _Timed(rank, 0.0)


def _ascent_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    """Return when the leader has the sum of the tree."""

    def at_island(members: list[_Timed]) -> _Timed:
        first, start_s = members[0]
        arriving = [
            (
                member.seconds + float(links.latency_s[member.leader, first]),
                links.wire_s(member.leader, first, num_bytes=num_bytes),
                links.port_s(member.leader, first, num_bytes=num_bytes),
            )
            for member in members[1:]
        ]
        return _Timed(first, served_s(arriving, start_s=start_s))

    return folded(tree, at_rank=_at_rank, at_island=at_island).seconds


def _descent_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    """Return the seconds from when the leader has the sum until all ranks have it."""

    def at_island(members: list[_Timed]) -> _Timed:
        first, sent_s, end_s = members[0].leader, 0.0, 0.0
        # The last member first, as the executor sends.
        for member in members[:0:-1]:
            wire_s = links.wire_s(first, member.leader, num_bytes=num_bytes)
            there_s = sent_s + wire_s + float(links.latency_s[first, member.leader])
            end_s = max(end_s, there_s + member.seconds)
            sent_s += links.port_s(first, member.leader, num_bytes=num_bytes)
        return _Timed(first, max(end_s, sent_s + members[0].seconds))

    return folded(tree, at_rank=_at_rank, at_island=at_island).seconds
