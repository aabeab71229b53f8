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
    hierarchical   2 (a + n b) for each level       a sync tree: islands first
    ============== =============================== ==============================================

Each function says what takes longest where links differ. Adding takes no time.

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005; Li et al., "Scaling Distributed Machine Learning with the Parameter Server", OSDI 2014.
"""

from itertools import pairwise

from jaxpipe.plan.cost.link import Links
from jaxpipe.schedule import SyncTree, leader


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
    return _served_s(inward) + _served_s(outward)


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


def hierarchical_s(links: Links, tree: SyncTree, *, num_bytes: float) -> float:
    """Return the seconds of a sum along a sync tree over the members, and of the way back.

    The leaders of an island's members send to its leader as soon as they have their own sums, each
    over its own link; down again likewise.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> hierarchical_s(links, ((0, 1), (2, 3)), num_bytes=2)
    12.0
    """
    return _ascent_s(links, tree, num_bytes) + _descent_s(links, tree, num_bytes)


def _served_s(messages: list[tuple[float, float]]) -> float:
    """Return when a port has taken all messages, pairs of latency and seconds on the wire.

    Sending is receiving with time reversed: it takes as long.
    """
    end_s = 0.0
    for latency_s, wire_s in sorted(messages):
        end_s = max(end_s, float(latency_s)) + wire_s
    return end_s


def _ascent_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    if isinstance(tree, int):
        return 0.0
    arrivals = [
        _ascent_s(links, member, num_bytes)
        + links.message_s(leader(member), leader(tree), num_bytes=num_bytes)
        for member in tree[1:]
    ]
    return max(_ascent_s(links, tree[0], num_bytes), *arrivals, 0.0)


def _descent_s(links: Links, tree: SyncTree, num_bytes: float) -> float:
    if isinstance(tree, int):
        return 0.0
    arrivals = [
        links.message_s(leader(tree), leader(member), num_bytes=num_bytes)
        + _descent_s(links, member, num_bytes)
        for member in tree[1:]
    ]
    return max(_descent_s(links, tree[0], num_bytes), *arrivals, 0.0)
