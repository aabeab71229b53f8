"""Use of links: bytes, seconds and goodput of what one rank, or one region, sends to another.

The seconds of a pair of ranks are those in which at least one of its messages is on its way. A
message is on its way from the moment when it is handed to the network and its receive is posted
until the receiver notices that it is complete::

    sender     compute │ handed over ─────────────┐
    receiver        posted │ .................... │ complete
    on its way             ├──────────────────────┤         seconds: the union of all messages

Waiting for a sender that computes, or for a receiver that has not come so far, is not counted. The
latency is counted once for each period in which messages follow each other without a gap.

A message whose receive was posted after it was handed over, and that is complete at once, may have
travelled before: MPI sends small messages ahead. Its bytes are counted, its seconds are unknown.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from jaxtyping import Float


class Traffic(StrEnum):
    """What a message carries."""

    ACTIVATIONS = "activations"
    """Activations and their gradients, between stages."""
    GRADIENTS = "gradients"
    """Gradients, gathered parameters (ZeRO-1) and outer steps, between replicas."""
    CHECKPOINTS = "checkpoints"
    """Shards and their copies."""
    CONTROL = "control"
    """Losses and norms, barriers, clocks, heartbeats, reports."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairUse:
    """What one rank has sent to another: of one kind of traffic, or of all kinds if it is None.

    `num_bytes` are those of all messages, `timed_bytes` of those whose seconds are known. The
    latter were on their way for `seconds`, in `num_periods` without a gap.
    """

    source: int
    to: int
    traffic: Traffic | None
    num_messages: int
    num_bytes: int
    timed_bytes: int
    seconds: float
    num_periods: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkUse:
    """What one end has sent to the other, of one kind of `traffic` or of `all` kinds.

    `seconds` are summed over the pairs of ranks between the two ends. `goodput_bytes_per_s` is
    `timed_bytes` / `seconds`: that of a pair of ranks while messages are on their way.
    `efficiency` is this goodput over the bandwidth in the cluster file. Both are None where no
    message was timed, `efficiency` also where the cluster file states no limit.
    """

    source: str
    to: str
    traffic: str
    num_messages: int
    num_bytes: int
    timed_bytes: int
    seconds: float
    goodput_bytes_per_s: float | None
    efficiency: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """The use of all links in some steps, the last of which is that of the metrics beside it.

    `regions` has the pairs of regions. `ranks` has the pairs of ranks, if they were asked for.
    """

    first_step: int
    regions: tuple[LinkUse, ...]
    ranks: tuple[LinkUse, ...] = ()


def busy(
    begin_s: Float[np.ndarray, " messages"], end_s: Float[np.ndarray, " messages"]
) -> tuple[float, int]:
    """Return the seconds of the union of some periods, and the number of its parts.

    >>> busy(np.array([5.0, 0.0, 1.0]), np.array([6.0, 2.0, 3.0]))
    (4.0, 2)
    """
    if not begin_s.size:
        return 0.0, 0
    order = np.argsort(begin_s, kind="stable")
    begins, ends = begin_s[order], np.maximum.accumulate(end_s[order])
    first = np.flatnonzero(np.append(True, begins[1:] > ends[:-1]))
    last = np.append(first[1:] - 1, begins.size - 1)
    return float((ends[last] - begins[first]).sum()), int(first.size)


def link_uses(
    uses: Iterable[PairUse],
    *,
    name_of: Callable[[int], str],
    bandwidth_bytes_per_s: Callable[[int, int], float],
) -> tuple[LinkUse, ...]:
    """Return the use of links between named ends: for example, the regions of ranks.

    >>> pairs = [
    ...     PairUse(source=source, to=2, traffic=None, num_messages=1, num_bytes=10,
    ...         timed_bytes=10, seconds=2.0, num_periods=1)
    ...     for source in (0, 1)]
    >>> [link] = link_uses(
    ...     pairs, name_of=lambda rank: "ab"[rank // 2], bandwidth_bytes_per_s=lambda *_: 10.0)
    >>> link.source, link.to, link.num_bytes, link.goodput_bytes_per_s, link.efficiency
    ('a', 'b', 20, 5.0, 0.5)
    """
    members: dict[tuple[str, str, str], list[PairUse]] = {}
    for use in uses:
        kind = "all" if use.traffic is None else use.traffic.value
        members.setdefault((name_of(use.source), name_of(use.to), kind), []).append(use)
    return tuple(_sum(key, members[key], bandwidth_bytes_per_s) for key in sorted(members))


def _sum(
    key: tuple[str, str, str],
    pairs: Sequence[PairUse],
    bandwidth_bytes_per_s: Callable[[int, int], float],
) -> LinkUse:
    seconds = sum(pair.seconds for pair in pairs)
    timed_bytes = sum(pair.timed_bytes for pair in pairs)
    planned_s = sum(
        pair.timed_bytes / bandwidth_bytes_per_s(pair.source, pair.to) for pair in pairs
    )
    source, to, traffic = key
    return LinkUse(
        source=source,
        to=to,
        traffic=traffic,
        num_messages=sum(pair.num_messages for pair in pairs),
        num_bytes=sum(pair.num_bytes for pair in pairs),
        timed_bytes=timed_bytes,
        seconds=seconds,
        goodput_bytes_per_s=timed_bytes / seconds if seconds else None,
        efficiency=planned_s / seconds if seconds and planned_s else None,
    )


def total_bytes(links: Iterable[LinkUse], traffic: Traffic | None = None) -> int:
    """Return the bytes of some links, of one kind of traffic or of all."""
    kind = "all" if traffic is None else traffic.value
    return sum(link.num_bytes for link in links if link.traffic == kind)
