"""How long an all-reduce takes, in closed form, for each way to do it.

Members are numbered 0 .. p - 1 in the order in which the algorithm takes them; `num_bytes` is what
each of them holds. On p equal links of latency a and b seconds per byte, for n bytes:

    ============== =============================== ==============================================
    chain          2 (p - 1) (a + n b / c)          c chunks, which follow each other along the
                   + 2 (c - 1) n b / c              chain to member 0, and back
    ring           2 (p - 1) (a + n b / p)          reduce-scatter, then all-gather
    tree           2 ceil(log2 p) (a + n b)         binomial: to member 0, and back
    central        2 (a + (p - 1) n b)              all send to member 0, one after the other
    sharded        2 (p - 1) (a + n b / p)          each member serves one share to all others
    hierarchical   2 (a + (q - 1) n b / c) for each a sync tree: islands of q members first, in
                   level, + (c - 1) (q - 1) n b / c c chunks, each of which turns round at once
    ============== =============================== ==============================================

Each function says what takes longest where links differ. Adding takes no time. Those that share
sums out along a sync tree are in `jaxpipe.plan.cost.shares`.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005; Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

from collections import defaultdict
from itertools import pairwise
from math import ceil, inf

from jaxpipe.collective import SyncTree, leader, to_leaders
from jaxpipe.plan.cost.link import Links, served_s


def chain_s(links: Links, *, num_bytes: float, num_chunks: int = 1) -> float:
    """Return the seconds of a reduce along the members to member 0, and of the broadcast back.

    Chunks follow each other, so that of the links' wires the slowest counts for all but one chunk.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> links = uniform_links(3, latency_s=1.0, bandwidth_bytes_per_s=2.0)
    >>> chain_s(links, num_bytes=4, num_chunks=2)
    10.0
    """
    chunk = num_bytes / num_chunks
    down = list(pairwise(range(len(links))))
    up = [(b, a) for a, b in down]
    return sum(
        sum(links.message_s(a, b, num_bytes=chunk) for a, b in hops)
        + (num_chunks - 1)
        * max((links.wire_s(a, b, num_bytes=chunk) for a, b in hops), default=0.0)
        for hops in (up, down)
    )


def ring_s(links: Links, *, num_bytes: float) -> float:
    """Return the seconds of 2 (p - 1) rounds, in each of which every member sends a p-th.

    A round takes as long as its slowest message.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> ring_s(uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0), num_bytes=8)
    18.0
    """
    size = len(links)
    slowest = max(
        links.message_s(member, (member + 1) % size, num_bytes=num_bytes / size)
        for member in range(size)
    )
    return 2 * (size - 1) * slowest


def tree_s(links: Links, *, num_bytes: float) -> float:
    """Return the seconds of a binomial reduce to member 0, and of the broadcast back.

    In round k, member r sends to r - 2 ** k if that is its lowest bit; rounds follow each other.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> tree_s(uniform_links(5, latency_s=1.0, bandwidth_bytes_per_s=1.0), num_bytes=2)
    18.0
    """
    size, total, step = len(links), 0.0, 1
    while step < size:
        pairs = [(member, member - step) for member in range(step, size, 2 * step)]
        total += max(links.message_s(a, b, num_bytes=num_bytes) for a, b in pairs)
        total += max(links.message_s(b, a, num_bytes=num_bytes) for a, b in pairs)
        step *= 2
    return total


def central_s(links: Links, *, num_bytes: float) -> float:
    """Return the seconds in which all send to member 0, and it to all of them.

    Its port takes the messages one after the other: inwards the nearest first, outwards the
    farthest, so that latencies hide behind each other's bytes.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> central_s(uniform_links(3, latency_s=1.0, bandwidth_bytes_per_s=1.0), num_bytes=2)
    10.0
    """
    others = range(1, len(links))
    inward = [(links.latency_s[m, 0], links.wire_s(m, 0, num_bytes=num_bytes)) for m in others]
    outward = [(links.latency_s[0, m], links.wire_s(0, m, num_bytes=num_bytes)) for m in others]
    return served_s(inward) + served_s(outward)


def sharded_s(links: Links, *, num_bytes: float) -> float:
    """Return the seconds in which each member serves a p-th of the bytes to all others.

    Each sends to the others in turn, shares first, then sums; the slowest member counts. This is
    the term of the gradients in DT-FM's cost.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> sharded_s(uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0), num_bytes=8)
    18.0
    """
    size = len(links)
    return 2 * max(
        sum(
            links.message_s(member, other, num_bytes=num_bytes / size)
            for other in range(size)
            if other != member
        )
        for member in range(size)
    )


def hierarchical_s(
    links: Links, tree: SyncTree, *, num_bytes: float, chunk_bytes: float = inf
) -> float:
    """Return the seconds of a sum along a sync tree over the members, and of the way back.

    The leaders of an island's members send to its leader as soon as they have their own sums; it
    takes them one after the other, as they come, when its own island is done. Down again it serves
    the last member first. A flat tree on equal links is `central_s`, a nested one is `chain_s`.
    Chunks of `chunk_bytes` follow each other up and down at once: of all but one chunk only what
    the busiest member takes in, or gives out, counts.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> hierarchical_s(links, ((0, 1), (2, 3)), num_bytes=2)
    12.0
    >>> hierarchical_s(links, ((0, 1), (2, 3)), num_bytes=2, chunk_bytes=1)
    10.0
    """
    chunks = num_chunks(num_bytes, chunk_bytes=chunk_bytes)
    chunk = num_bytes / chunks
    first_s = _ascent_s(links, tree, chunk) + _descent_s(links, tree, chunk)
    return first_s + (chunks - 1) * _busiest_s(links, tree, chunk)


def num_chunks(num_bytes: float, *, chunk_bytes: float) -> int:
    """Return how many chunks of at most `chunk_bytes` there are; nothing is one chunk."""
    return max(1, ceil(num_bytes / chunk_bytes))


def _busiest_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    """Return the seconds that the busiest member spends on a chunk, taking in or giving out."""
    taken_s: dict[int, float] = defaultdict(float)
    given_s: dict[int, float] = defaultdict(float)
    for child, parent in to_leaders(tree):
        taken_s[parent] += links.wire_s(child, parent, num_bytes=num_bytes)
        given_s[parent] += links.wire_s(parent, child, num_bytes=num_bytes)
    return max((*taken_s.values(), *given_s.values()), default=0.0)


def _ascent_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    """Return when the leader has the sum of the tree."""
    if isinstance(tree, int):
        return 0.0
    end_s, first = _ascent_s(links, tree[0], num_bytes), leader(tree)
    arriving = [
        (
            _ascent_s(links, member, num_bytes) + float(links.latency_s[leader(member), first]),
            links.wire_s(leader(member), first, num_bytes=num_bytes),
        )
        for member in tree[1:]
    ]
    return served_s(arriving, start_s=end_s)


def _descent_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    """Return the seconds from when the leader has the sum until all ranks have it."""
    if isinstance(tree, int):
        return 0.0
    sent_s, end_s, first = 0.0, 0.0, leader(tree)
    for member in tree[:0:-1]:
        sent_s += links.wire_s(first, leader(member), num_bytes=num_bytes)
        there_s = sent_s + float(links.latency_s[first, leader(member)])
        end_s = max(end_s, there_s + _descent_s(links, member, num_bytes))
    return max(end_s, sent_s + _descent_s(links, tree[0], num_bytes))
