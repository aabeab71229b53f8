"""All-reduces message by message: what the closed forms are held against."""

from collections.abc import Sequence
from itertools import pairwise

from jaxpipe.collective import SyncTree, leader
from jaxpipe.plan.cost.link import Links


def chain(links: Links, *, num_bytes: float, num_chunks: int) -> float:
    """Move each chunk over each link, one after the other; then all the way back."""
    size, chunk = len(links), num_bytes / num_chunks
    total = 0.0
    for route in (range(size - 1, -1, -1), range(size)):
        at = [0.0] * num_chunks
        for a, b in pairwise(route):
            free = 0.0
            for index, ready in enumerate(at):
                free = max(free, ready) + links.wire_s(a, b, num_bytes=chunk)
                at[index] = free + float(links.latency_s[a, b])
        total += at[-1]
    return total


def ring(links: Links, *, num_bytes: float) -> float:
    """Do 2 (p - 1) rounds, each begun when the last has ended."""
    size, clock = len(links), 0.0
    for _ in range(2 * (size - 1)):
        clock = max(
            clock + links.message_s(m, (m + 1) % size, num_bytes=num_bytes / size)
            for m in range(size)
        )
    return clock


def tree(links: Links, *, num_bytes: float) -> float:
    """Let each member send to the one without its lowest bit, lower bits first; then back."""
    size = len(links)
    rounds = [
        [(m, m - (m & -m)) for m in range(1, size) if m & -m == 1 << bit]
        for bit in range(size.bit_length())
    ]
    up = sum(_slowest(links, pairs, num_bytes) for pairs in rounds)
    down = sum(_slowest(links, [(b, a) for a, b in pairs], num_bytes) for pairs in rounds)
    return up + down


def central(links: Links, *, num_bytes: float) -> float:
    """Receive in the order of arrival; then send the farthest first."""
    others = range(1, len(links))
    clock = 0.0
    for m in sorted(others, key=lambda m: links.latency_s[m, 0]):
        clock = max(clock, float(links.latency_s[m, 0])) + links.wire_s(m, 0, num_bytes=num_bytes)
    sent, last = 0.0, 0.0
    for m in sorted(others, key=lambda m: -links.latency_s[0, m]):
        sent += links.wire_s(0, m, num_bytes=num_bytes)
        last = max(last, sent + float(links.latency_s[0, m]))
    return clock + last


def sharded(links: Links, *, num_bytes: float) -> float:
    """Let each member send its shares in turn; when all have them, the sums likewise."""
    size, clock = len(links), 0.0
    for _ in range(2):
        begun = clock
        for member in range(size):
            at = begun
            for other in range(size):
                if other != member:
                    at += links.message_s(member, other, num_bytes=num_bytes / size)
            clock = max(clock, at)
    return clock


def hierarchical(links: Links, whole: SyncTree, *, num_bytes: float) -> float:
    """Serve the ports of all leaders, message by message, up and then down."""
    has_sum = [0.0] * len(links)
    for parent, children in _islands(whole):
        coming = sorted((has_sum[c] + float(links.latency_s[c, parent]), c) for c in children)
        for arrival, child in coming:
            begin = max(has_sum[parent], arrival)
            has_sum[parent] = begin + links.wire_s(child, parent, num_bytes=num_bytes)
    first = leader(whole)
    port = {first: has_sum[first]}
    for parent, children in reversed(_islands(whole)):
        for child in reversed(children):
            port[parent] += links.wire_s(parent, child, num_bytes=num_bytes)
            port[child] = port[parent] + float(links.latency_s[parent, child])
    return max(port.values())


def _islands(tree: SyncTree) -> list[tuple[int, list[int]]]:
    """Return the leader of each island and those who send to it, inner islands first."""
    if isinstance(tree, int):
        return []
    inner = [island for member in tree for island in _islands(member)]
    return [*inner, (leader(tree), [leader(member) for member in tree[1:]])]


def _slowest(links: Links, pairs: Sequence[tuple[int, int]], num_bytes: float) -> float:
    return max((links.message_s(a, b, num_bytes=num_bytes) for a, b in pairs), default=0.0)
