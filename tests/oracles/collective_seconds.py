"""All-reduces message by message: what the closed forms are held against."""

from jaxpipe.collective import SyncTree, leader
from jaxpipe.network.alpha_beta import Links


def ring(links: Links, *, num_bytes: float) -> float:
    """Do 2 (p - 1) rounds, each begun when the last has ended."""
    size, clock = len(links), 0.0
    for _ in range(2 * (size - 1)):
        clock = max(
            clock + links.message_s(m, (m + 1) % size, num_bytes=num_bytes / size)
            for m in range(size)
        )
    return clock


def tree(links: Links, whole: SyncTree, *, num_bytes: float) -> float:
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
