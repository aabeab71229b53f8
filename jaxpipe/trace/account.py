"""Time breakdown of a step: each second of each rank has one cause, so that they add up.

::

    rank 0   forward ......................    compute
    rank 1   receive ≈≈≈≈≈≈≈≈≈≈≈≈≈≈╎≈≈≈≈≈≈≈≈≈≈≈≈
                 waiting for       ╎ activations: the message is in flight
                 rank 0            ╎
                                   └ rank 0 posts its send

A rank that waits for a message waits for its sender until the send is posted, and for the network
from then on; a rank that waits for an all-reduce waits for the last rank to join it, and then for
the network. Communication that overlaps with compute is hidden, and costs nothing.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple, TypeVar

from jaxpipe.trace.span import Lane, Span, Trace, messages

_Key = TypeVar("_Key", bound="Spent | int")


class Spent(StrEnum):
    """The cause of a second of a rank."""

    COMPUTE = "compute"
    """Forwards and backwards."""
    UPDATE = "update"
    """The optimizer."""
    ACTIVATIONS = "activations"
    """Messages between stages, in both directions, that compute does not hide."""
    GRADIENTS = "gradients"
    """All-reduces that compute does not hide."""
    WAITING = "waiting"
    """Waiting for another rank that has not sent yet, or has not joined an all-reduce yet."""
    HOST = "host"
    """Between two instructions of the rank: what its host does to begin the next one."""
    IDLE = "idle"
    """Before its first instruction, or after its last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankAccount:
    """The time breakdown of one rank; the seconds of `spent_s` add up to the step.

    `waited_s[other]` is the part of the waiting that was for that rank.
    """

    rank: int
    spent_s: Mapping[Spent, float]
    waited_s: Mapping[int, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepAccount:
    """A step, from the first start to the last end of a span on any rank, by rank."""

    step: int
    seconds: float
    ranks: tuple[RankAccount, ...]


def account(trace: Trace) -> tuple[StepAccount, ...]:
    """Return the time breakdown of each step in the trace, first step first.

    Cost: that of sorting the spans.

    >>> from jaxpipe.trace.span import Truth
    >>> def span(rank: int, lane: Lane, start_s: float, end_s: float, peer: int | None) -> Span:
    ...     return Span(
    ...         rank=rank, lane=lane, name=lane.value, start_s=start_s, end_s=end_s, step=1,
    ...         stage=rank, microbatch=0, peer=peer,
    ...     )
    >>> spans = (
    ...     span(0, Lane.COMPUTE, 0.0, 3.0, None),
    ...     span(0, Lane.SEND, 3.0, 4.0, 1),
    ...     span(1, Lane.RECEIVE, 0.0, 4.0, 0),
    ... )
    >>> trace = Trace(truth=Truth.SIMULATED, rank_names=("a", "b"), spans=spans)
    >>> second = account(trace)[0].ranks[1]
    >>> {kind.value: seconds for kind, seconds in second.spent_s.items() if seconds}
    {'activations': 1.0, 'waiting': 3.0}
    >>> second.waited_s
    {0: 3.0}
    """
    steps: dict[int, list[Span]] = defaultdict(list)
    for span in trace.spans:
        steps[span.step].append(span)
    posted_s = {received: sent.start_s for sent, received in messages(trace)}
    return tuple(
        _account(step, steps[step], posted_s, num_ranks=len(trace.rank_names))
        for step in sorted(steps)
    )


def mean_account(steps: Sequence[StepAccount]) -> StepAccount:
    """Return the mean step, under the number of the last; there is at least one."""
    assert steps, "the mean of no steps"
    count = len(steps)
    ranks = zip(*(step.ranks for step in steps), strict=True)
    return StepAccount(
        step=steps[-1].step,
        seconds=sum(step.seconds for step in steps) / count,
        ranks=tuple(
            RankAccount(
                rank=account[0].rank,
                spent_s=_means([rank.spent_s for rank in account]),
                waited_s=_means([rank.waited_s for rank in account]),
            )
            for account in ranks
        ),
    )


def mean_spent_s(step: StepAccount) -> dict[Spent, float]:
    """Return the breakdown of the mean rank of a step; its parts add up to the step."""
    return _means([rank.spent_s for rank in step.ranks])


def _means(rows: Sequence[Mapping[_Key, float]]) -> dict[_Key, float]:
    totals: dict[_Key, float] = defaultdict(float)
    for seconds in rows:
        for key, value in seconds.items():
            totals[key] += value / len(rows)
    return dict(totals)


class _Cause(NamedTuple):
    """A cause of time; of several at a time, the one of the lowest `order` counts."""

    order: int
    kind: Spent
    peer: int


class _Claim(NamedTuple):
    """A rank has a cause from `start_s` to `end_s`."""

    start_s: float
    end_s: float
    cause: _Cause


_NOBODY = -1
_LAST = 9
"""Order of the host's time, which counts where nothing else does."""


def _account(
    step: int, spans: list[Span], posted_s: Mapping[Span, float], *, num_ranks: int
) -> StepAccount:
    start_s, end_s = min(s.start_s for s in spans), max(s.end_s for s in spans)
    joined = _last_to_join(spans)
    claims: dict[int, list[_Claim]] = defaultdict(list)
    for span in spans:
        claims[span.rank] += _claims(span, posted_s, joined)
    return StepAccount(
        step=step,
        seconds=end_s - start_s,
        ranks=tuple(
            _rank_account(rank, claims[rank], start_s=start_s, end_s=end_s)
            for rank in range(num_ranks)
        ),
    )


def _rank_account(
    rank: int, claims: Sequence[_Claim], *, start_s: float, end_s: float
) -> RankAccount:
    spent_s, waited_s = dict.fromkeys(Spent, 0.0), defaultdict[int, float](float)
    if claims:
        first_s = min(claim.start_s for claim in claims)
        last_s = max(claim.end_s for claim in claims)
        claims = [*claims, _Claim(first_s, last_s, _Cause(_LAST, Spent.HOST, _NOBODY))]
    for cause, seconds in _swept(claims, start_s=start_s, end_s=end_s):
        spent_s[Spent.IDLE if cause is None else cause.kind] += seconds
        if cause is not None and cause.kind is Spent.WAITING and cause.peer != _NOBODY:
            waited_s[cause.peer] += seconds
    return RankAccount(rank=rank, spent_s=spent_s, waited_s=dict(waited_s))


def _swept(
    claims: Iterable[_Claim], *, start_s: float, end_s: float
) -> Iterator[tuple[_Cause | None, float]]:
    """Yield the seconds between consecutive changes, and the first cause that is open then."""
    # A change of 0 at the end closes the last interval: without it, idle time there would be lost.
    changes = [(end_s, 0, None)]
    for claim in claims:
        changes += [(claim.start_s, 1, claim.cause), (claim.end_s, -1, claim.cause)]
    is_open: Counter[_Cause] = Counter()
    since_s = start_s
    # By time alone: `None` does not compare with a cause.
    for at_s, change, cause in sorted(changes, key=lambda change: change[0]):
        yield min(is_open, default=None), at_s - since_s
        since_s = at_s
        if cause is not None:
            is_open[cause] += change
            if not is_open[cause]:
                del is_open[cause]


def _claims(
    span: Span,
    posted_s: Mapping[Span, float],
    joined: Mapping[tuple[str, int | None], Span],
) -> Iterator[_Claim]:
    match span.lane:
        case Lane.COMPUTE:
            yield _Claim(span.start_s, span.end_s, _Cause(0, Spent.COMPUTE, _NOBODY))
        case Lane.UPDATE:
            yield _Claim(span.start_s, span.end_s, _Cause(1, Spent.UPDATE, _NOBODY))
        case Lane.RECEIVE:
            peer = _NOBODY if span.peer is None else span.peer
            # Without its send, as in a part of a trace, all of the wait counts as one for the peer.
            posted = posted_s.get(span, span.end_s)
            yield from _waiting(span, until_s=posted, order=2, on=Spent.ACTIVATIONS, peer=peer)
        case Lane.REDUCE:
            last = joined[_all_reduce_of(span)]
            peer = _NOBODY if last.rank == span.rank else last.rank  # the last waits for nobody
            until_s = span.start_s if peer == _NOBODY else last.start_s
            yield from _waiting(span, until_s=until_s, order=4, on=Spent.GRADIENTS, peer=peer)


def _waiting(
    span: Span, *, until_s: float, order: int, on: Spent, peer: int
) -> tuple[_Claim, _Claim]:
    """Return the part of a wait that is for another rank, and the part that is for the network."""
    # Clock offsets have an error: a send may seem to be posted outside of the wait.
    until_s = min(max(until_s, span.start_s), span.end_s)
    # Where waits overlap, the lower order counts: of one kind, the network before the rank.
    return (
        _Claim(span.start_s, until_s, _Cause(order + 1, Spent.WAITING, peer)),
        _Claim(until_s, span.end_s, _Cause(order, on, _NOBODY)),
    )


def _last_to_join(spans: Iterable[Span]) -> dict[tuple[str, int | None], Span]:
    """Return for each all-reduce of a step the span of the rank that joined last."""
    last: dict[tuple[str, int | None], Span] = {}
    for span in spans:
        if span.lane is Lane.REDUCE:
            earliest = last.setdefault(_all_reduce_of(span), span)
            if span.start_s > earliest.start_s:
                last[_all_reduce_of(span)] = span
    return last


def _all_reduce_of(span: Span) -> tuple[str, int | None]:
    """Return the key of an all-reduce within a step; each stage has its own."""
    return span.name, span.stage if span.name in _OF_ONE_STAGE else None


_OF_ONE_STAGE = ("reduce stage", "gather")
