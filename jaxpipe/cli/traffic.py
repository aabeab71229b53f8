"""The tables of what crossed an emulated network: by host, and by link."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topo.emulate import Traffic

_MOST_LINKS = 40


def host_lines(traffic: "Traffic", ranks: Mapping[int, Sequence[int]]) -> Iterator[str]:
    """Yield a line for each host: its interface's counters, and the ranks seen there."""
    width = max(4, *(len(host.host) for host in traffic.hosts))
    yield f"{'host':<{width}}  {'sent bytes':>15}  {'received bytes':>15}  ranks seen"
    for number, host in enumerate(traffic.hosts):
        seen = " ".join(map(str, ranks.get(number, ()))) or "-"
        yield f"{host.host:<{width}}  {host.sent_bytes:>15,}  {host.received_bytes:>15,}  {seen}"


def link_lines(traffic: "Traffic") -> Iterator[str]:
    """Yield a line for each link that something crossed, the busiest first."""
    used = sorted(
        (link for link in traffic.links if link.num_bytes or link.dropped_packets),
        key=lambda link: -link.num_bytes,
    )
    if not used:
        return
    names = [host.host for host in traffic.hosts]
    label = [f"{names[link.source]} -> {names[link.destination]}" for link in used]
    width = max(4, *map(len, label[:_MOST_LINKS]))
    yield ""
    yield f"{'link':<{width}}  {'bytes':>15}  {'dropped packets':>15}"
    for link, name in zip(used[:_MOST_LINKS], label, strict=False):
        yield f"{name:<{width}}  {link.num_bytes:>15,}  {link.dropped_packets:>15,}"
    if len(used) > _MOST_LINKS:
        rest = sum(link.num_bytes for link in used[_MOST_LINKS:])
        yield f"and {len(used) - _MOST_LINKS} more links, {rest:,} bytes"
