"""What each island has trained for the merges of a log, and with which moments it began.

::

    events     given 0 at 0     merged     given 1 at 10     (killed)     joined at 5, given 3
    stretches  0: steps 0 to 10 of anchor 0    1: 10 ...                  2: steps 5 ... of anchor 3
                         └── after step 5: the moments of its checkpoint ──┘

A stretch is what an island trains from one anchor. An island that joins continues the newest
stretch that has come by the step of its checkpoint.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from jaxpipe.outer.merge_log import Began, First, Given, Merge, MergedIsland, MergeEvent


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The state with which a stretch begins: that of another one, after `step` inner steps."""

    stretch: int
    step: int


@dataclass(slots=True, kw_only=True)
class Stretch:
    """The inner steps of an island from an anchor: from `start` to `end`, of its run.

    Without an `origin` it begins with a fresh state. What it has learned after the step
    `delivered` is in a merge. Steps that lead to no merge and no checkpoint are left out, and may
    be all.
    """

    island: int
    anchor: int
    start: int
    end: int
    origin: Origin | None
    delivered: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The stretches of all islands, in the order in which they began.

    `of_island` has the numbers of those of an island. `given` has the number of the stretch that
    begins with an event, `merged` those that an event merges; both by the number of the event,
    from 0.
    """

    stretches: list[Stretch] = field(default_factory=list[Stretch])
    of_island: dict[int, list[int]] = field(default_factory=dict[int, list[int]])
    given: dict[int, int] = field(default_factory=dict[int, int])
    merged: dict[int, tuple[int, ...]] = field(default_factory=dict[int, tuple[int, ...]])


@dataclass(slots=True, kw_only=True)
class _Server:
    """What the server has, after some events: the number of its anchor, and all digests so far."""

    began: Began | None = None
    first: int | None = None
    anchor: int | None = None
    digests: dict[int, str] = field(default_factory=dict[int, str])


def lineage_of(events: Sequence[MergeEvent]) -> Lineage:
    """Return what the islands of a log have trained.

    Raises:
        ValueError: an event cannot follow those before it; the message begins with its line.
    """
    server, lineage = _Server(), Lineage()
    for number, event in enumerate(events):
        try:
            _follow(server, event)
            if isinstance(event, Given):
                lineage.given[number] = _begin_stretch(lineage, event)
            elif isinstance(event, Merge):
                lineage.merged[number] = tuple(_merged(lineage, part) for part in event.islands)
        except ValueError as error:
            raise ValueError(f"line {number + 1}: {error}") from None
    return lineage


def _follow(server: _Server, event: MergeEvent) -> None:
    """Check that the server can do this next, and take note of it."""
    if isinstance(event, Began):
        if event.anchor and server.digests.get(event.anchor) != event.digest:
            raise ValueError(f"`anchor` is {event.anchor}, which no line before has made")
        server.began, server.anchor = event, event.anchor or None
        return
    if server.began is None:
        raise ValueError("`kind` must be `began` in the first line")
    for part in event.islands if isinstance(event, Merge) else (event,):
        if not 0 <= part.island < server.began.islands:
            raise ValueError(f"`island` is {part.island}, and must be below {server.began.islands}")
    match event:
        case First():
            _follow_first(server, event)
        case Merge():
            _follow_merge(server, event)
        case Given():
            _follow_given(server, event)


def _follow_first(server: _Server, event: First) -> None:
    if server.anchor is not None:
        raise ValueError(f"`kind` must not be `first` after anchor {server.anchor}")
    server.anchor, server.first = 0, event.island
    server.digests[0] = event.digest


def _follow_merge(server: _Server, event: Merge) -> None:
    _check_anchor(event.anchor, None if server.anchor is None else server.anchor + 1)
    if any(not 0 <= part.base < event.anchor for part in event.islands):
        raise ValueError(f"`base` must be an anchor before {event.anchor}")
    server.anchor = event.anchor
    server.digests[event.anchor] = event.digest


def _follow_given(server: _Server, event: Given) -> None:
    _check_anchor(event.anchor, server.anchor)
    if event.island == server.first:
        server.first = None
        if event.step:
            raise ValueError(
                f"`step` is {event.step}, and must be 0 for island {event.island}, whose "
                "parameters are anchor 0"
            )


def _check_anchor(anchor: int, due: int | None) -> None:
    if anchor != due:
        raise ValueError(f"`anchor` is {anchor}, and {'none' if due is None else due} is due")


def _begin_stretch(lineage: Lineage, event: Given) -> int:
    """Begin a stretch with the state that the island has; return its number."""
    if event.step < 0:
        raise ValueError(f"`step` is {event.step}, and must not be negative")
    before = lineage.of_island.setdefault(event.island, [])
    if not (before or event.joined):
        raise ValueError(f"island {event.island} is given an anchor, and has not joined")
    # A process that was not restarted has the state of its newest stretch.
    newest = before if event.joined else before[-1:]
    origin = _origin(lineage, newest, island=event.island, step=event.step)
    stretch = Stretch(
        island=event.island, anchor=event.anchor, start=event.step, end=event.step, origin=origin
    )
    number = len(lineage.stretches)
    lineage.stretches.append(stretch)
    before.append(number)
    return number


def _origin(lineage: Lineage, before: Sequence[int], *, island: int, step: int) -> Origin | None:
    """Return the state after `step` steps of the newest of some stretches that has come by it."""
    if step == 0:
        return None  # a run that begins
    for number in reversed(before):
        stretch = lineage.stretches[number]
        if stretch.start == step:  # nothing was trained yet: it has the state of its own origin
            return stretch.origin
        if stretch.start < step:
            stretch.end = max(stretch.end, step)
            return Origin(stretch=number, step=step)
    raise ValueError(
        f"island {island} has done {step} inner steps, and no line tells how it came there"
    )


def _merged(lineage: Lineage, part: MergedIsland) -> int:
    """Return the number of the stretch that a delivery ends."""
    start = part.step - part.steps
    for number in reversed(lineage.of_island.get(part.island, ())):
        stretch = lineage.stretches[number]
        if (stretch.anchor, stretch.start) == (part.base, start):
            if stretch.delivered not in (None, part.step):
                raise ValueError(
                    f"island {part.island} delivers after step {part.step}, and has delivered "
                    f"after step {stretch.delivered}"
                )
            stretch.end, stretch.delivered = max(stretch.end, part.step), part.step
            return number
    raise ValueError(
        f"island {part.island} delivers what it has learned from anchor {part.base} after step "
        f"{start}, and no line gives it that"
    )
