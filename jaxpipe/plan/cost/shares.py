"""How long an all-reduce in shares takes: islands share sums out, exchange them, and gather.

At each level of the sync tree every rank sends the others that hold the same part their shares of
it, and adds; at the root two members swap what they hold instead. Then the shares go back. Levels
follow each other; at each of them the slowest port counts, which sends and receives one message
after the other in each direction. Chunks hide some of that: these are upper bounds.

On equal links of latency a and b seconds per byte, for n bytes over p ranks:

    ============================== ======================================================
    a flat tree, p > 2             2 (a + n b (p - 1) / p)
    two ranks                      a + n b
    halves, p = 2 ** k             (2 k - 1) a + 2 n b (p - 1) / p
    two islands of q               2 (a + n b (q - 1) / q) + a + n b / q
    ============================== ======================================================

Source: Thakur, Rabenseifner, Gropp, "Optimization of Collective Communication Operations in MPICH",
2005; Cho et al., "BlueConnect", SysML 2019.
"""

from collections import defaultdict
from collections.abc import Iterator
from itertools import permutations

from jaxpipe.collective import SyncTree
from jaxpipe.collective.shards import Meeting, Part, meetings
from jaxpipe.collective.sync_tree import halves, pruned
from jaxpipe.plan.cost.link import Links, served_s

_WHOLE = Part(0, 2**40)
"""The array in units so small that cutting them evenly is exact enough."""

_Message = tuple[int, int, float]
"""Source, destination, bytes."""


def shares_s(links: Links, tree: SyncTree, *, num_bytes: float) -> float:
    """Return the seconds of an all-reduce in shares along a sync tree over the members.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> links = uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0)
    >>> shares_s(links, ((0, 1), (2, 3)), num_bytes=8)
    15.0
    """
    tree = pruned(tree)
    if isinstance(tree, int):
        return 0.0
    unit_bytes = num_bytes / _WHOLE.size
    met = meetings(tree, _WHOLE)
    if len(tree) == 2:
        exchange_s = _slowest_port_s(links, _swap(met, unit_bytes))
    else:
        exchange_s = _there_and_back_s(links, met, unit_bytes)
    return exchange_s + max(_inside_s(links, member, unit_bytes) for member in tree)


def halving_s(links: Links, *, num_bytes: float) -> float:
    """Return the seconds of recursive halving and doubling, for any number of members.

    >>> from jaxpipe.plan.cost.link import uniform_links
    >>> halving_s(uniform_links(4, latency_s=1.0, bandwidth_bytes_per_s=1.0), num_bytes=8)
    15.0
    """
    return shares_s(links, halves(range(len(links))), num_bytes=num_bytes)


def _inside_s(links: Links, tree: SyncTree, unit_bytes: float) -> float:
    """Return the seconds in which a tree shares its sum out, and in which it gathers it again."""
    if isinstance(tree, int):
        return 0.0
    exchange_s = _there_and_back_s(links, meetings(tree, _WHOLE), unit_bytes)
    return exchange_s + max(_inside_s(links, member, unit_bytes) for member in tree)


def _there_and_back_s(links: Links, met: tuple[Meeting, ...], unit_bytes: float) -> float:
    there = list(_scatter(met, unit_bytes))
    back = [(destination, source, num_bytes) for source, destination, num_bytes in there]
    return _slowest_port_s(links, there) + _slowest_port_s(links, back)


def _scatter(met: tuple[Meeting, ...], unit_bytes: float) -> Iterator[_Message]:
    for part, holders in met:
        shares = dict(zip(holders, part.cut(len(holders)), strict=True))
        for source, destination in permutations(holders, 2):
            yield source, destination, shares[destination].size * unit_bytes


def _swap(met: tuple[Meeting, ...], unit_bytes: float) -> Iterator[_Message]:
    for part, holders in met:
        for source, destination in permutations(holders, 2):
            yield source, destination, part.size * unit_bytes


def _slowest_port_s(links: Links, messages: Iterator[_Message] | list[_Message]) -> float:
    """Return when the last port has moved its messages, in and out at once."""
    ports: defaultdict[tuple[int, str], list[tuple[float, float]]] = defaultdict(list)
    for source, destination, num_bytes in messages:
        latency_s = float(links.latency_s[source, destination])
        message = (latency_s, links.wire_s(source, destination, num_bytes=num_bytes))
        ports[source, "out"].append(message)
        ports[destination, "in"].append(message)
    return max((served_s(port) for port in ports.values()), default=0.0)
