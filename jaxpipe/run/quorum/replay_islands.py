"""Replay a run of islands: train them on this machine, merge what the log says, compare.

::

    log ─► lineage ─► a thread for each island ── deliveries ──► Merger ─► digest, as in the log?
                              └──────────── anchors ◄──────────────┘

Islands train beside each other, as far as the log lets them; the bits do not depend on it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import Event, Thread

import numpy as np

from jaxpipe.comm import Transport, run_ranks
from jaxpipe.errors import ConfigError
from jaxpipe.outer.merge_lineage import Lineage, Stretch
from jaxpipe.outer.merge_log import Began, First, Given, Merge, MergedIsland, MergeEvent
from jaxpipe.outer.outer_update import OuterState
from jaxpipe.outer.quorum import Delivery, Merger, QuorumConfig, fresh_merger, quorum_of
from jaxpipe.run.quorum.merge_log_file import LoggedRun
from jaxpipe.run.quorum.replay_line import ReplayLine
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.replayed_stretches import train_stretches
from jaxpipe.runtime.train_snapshot import Saved

_END_S = 60.0
"""What islands have to end their step when the replay is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """How many merges a replay has made as the log has them, and the first `difference`.

    It is empty if all are equal.
    """

    num_merges: int
    difference: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRun:
    """The run of an island: its job, and what it has begun with, unless it is new."""

    job: Job
    begun: Saved | None = None


class _Island:
    """An island in threads of this process, one for each rank."""

    def __init__(self, number: int, run: ReplayedRun, log: LoggedRun) -> None:
        self.number = number
        self.stretches = replayed_stretches(log.lineage, number)
        self.line = ReplayLine(number, log.began.codec, is_over=self._is_over)
        self._run = run
        self._over = Event()
        self._error: BaseException | None = None
        self._fresh: dict[str, np.ndarray] | None = None
        self._delivered: dict[int, Delivery] = {}
        self._thread = Thread(target=self._train, name=f"island {number}", daemon=True)
        self._thread.start()

    def give(self, number: int, merger: Merger) -> None:
        """Let it train a stretch from the anchor of now.

        Raises:
            ConfigError: its model is not that of the anchor.
            JaxpipeError: the island has failed.
        """
        if number in self.stretches:
            anchor = {name: state.anchor for name, state in merger.states.items()}
            if _shapes(anchor) != _shapes(self.fresh()):
                raise ConfigError(
                    f"`model` of island {self.number} is not that of the log; name the folder of "
                    "an island of this log"
                )
            self.line.give(self.stretches[number], anchor)

    def fresh(self) -> dict[str, np.ndarray]:
        """Return the parameters with which it begins.

        Raises:
            JaxpipeError: the island has failed.
        """
        if self._fresh is None:
            self._fresh = self.line.fresh()
        return self._fresh

    def delivery(self, number: int) -> Delivery:
        """Return what it has learned in a stretch; a server that had lost the merge gets it again.

        Raises:
            JaxpipeError: the island has failed.
        """
        if number not in self._delivered:
            self._delivered = {number: self.line.delivery()}
        return self._delivered[number]

    def end(self) -> None:
        """End its step, and wait for it."""
        self._over.set()
        self._thread.join(timeout=_END_S)

    def _is_over(self) -> bool:
        if self._error is not None and not self._over.is_set():
            raise self._error
        return self._over.is_set()

    def _train(self) -> None:
        def rank(transport: Transport) -> None:
            job = self._run.job
            train_stretches(
                replace(job, line=self.line) if transport.rank == 0 else job,
                transport,
                self.stretches,
                begun=self._run.begun,
                is_over=self._over.is_set,
            )

        try:
            run_ranks(self._run.job.plan.num_ranks, rank)
        except BaseException as error:  # it is raised where the island is waited for
            self._error = error


def _shapes(tensors: Mapping[str, np.ndarray]) -> dict[str, tuple[int, ...]]:
    return {name: tensor.shape for name, tensor in tensors.items()}


def merged_by(log: LoggedRun) -> set[int]:
    """Return the islands that have a part in an anchor."""
    first = {event.island for event in log.events if isinstance(event, First)}
    return first | {s.island for s in log.lineage.stretches if s.delivered is not None}


def replayed_stretches(lineage: Lineage, island: int) -> dict[int, Stretch]:
    """Return what an island has to train, by number: with steps, or the first one of all.

    The first one brings its parameters, which may be anchor 0.
    """
    numbers = lineage.of_island[island]
    stretches = {number: lineage.stretches[number] for number in numbers}
    return {n: s for n, s in stretches.items() if s.end > s.start or n == numbers[0]}


def replay(
    log: LoggedRun, runs: Mapping[int, ReplayedRun], *, say: Callable[[str], object]
) -> Replayed:
    """Train the islands of a log, merge as it says, and end at the first merge that differs.

    `runs` has the islands of `merged_by`. `say` is called with a line for each merge.

    Raises:
        JaxpipeError: an island has failed.
    """
    islands = {number: _Island(number, run, log) for number, run in runs.items()}
    try:
        return _Replay(log=log, islands=islands).run(say)
    finally:
        for island in islands.values():
            island.end()


@dataclass(slots=True, kw_only=True)
class _Replay:
    """The merger of a replay, and the anchors from which servers have started again."""

    log: LoggedRun
    islands: Mapping[int, _Island]
    config: QuorumConfig = field(default_factory=QuorumConfig)
    saved: dict[int, dict[str, OuterState]] = field(default_factory=dict)
    merger: Merger | None = None

    def run(self, say: Callable[[str], object]) -> Replayed:
        again = {event.anchor for event in self.log.events if isinstance(event, Began)}
        num_merges = 0
        for number, event in enumerate(self.log.events):
            if difference := self._follow(number, event):
                return Replayed(num_merges=num_merges, difference=difference)
            if isinstance(event, Merge):
                num_merges += 1
                say(f"anchor {event.anchor}: as in the log")
                if event.anchor in again:
                    self.saved[event.anchor] = dict(self._current.states)
        return Replayed(num_merges=num_merges, difference="")

    @property
    def _current(self) -> Merger:
        assert self.merger is not None, "the lineage has checked it"
        return self.merger

    def _follow(self, number: int, event: MergeEvent) -> str:
        """Do what an event says; return how the result differs from the log."""
        lineage = self.log.lineage
        match event:
            case Began():
                self._begin(event)
            case First():
                fresh = self.islands[event.island].fresh()
                self.merger = fresh_merger(self.config, fresh)
                if self.merger.digest() != event.digest:
                    return f"anchor 0 differs: island {event.island} begins with other parameters"
            case Given():
                if event.island in self.islands:
                    self.islands[event.island].give(lineage.given[number], self._current)
            case Merge():
                for part, stretch in zip(event.islands, lineage.merged[number], strict=True):
                    self._current.deliver(self.islands[part.island].delivery(stretch))
                return difference_of(event, self._current.merge())
        return ""

    def _begin(self, began: Began) -> None:
        self.config = quorum_of(began)
        self.merger = None
        if began.anchor:
            states = dict(self.saved[began.anchor])
            self.merger = Merger(config=self.config, states=states, version=began.anchor)


def difference_of(logged: Merge, made: Merge) -> str:
    """Return how a merge differs from the one in the log; empty if it does not."""
    parts = {part.island: part for part in made.islands}
    for part in logged.islands:
        if (reason := _difference_of_part(part, parts.get(part.island))) is not None:
            return f"anchor {logged.anchor} differs: {reason}"
    if made == logged:
        return ""
    return f"anchor {logged.anchor} differs, and all deliveries are those of the log"


def _difference_of_part(logged: MergedIsland, made: MergedIsland | None) -> str | None:
    what = f"island {logged.island}"
    if made is None:
        return f"{what} has delivered for a later anchor than {logged.base} before"
    if made.tokens != logged.tokens:
        return f"{what} trains on {made.tokens:.17g} tokens, and {logged.tokens:.17g} in the log"
    if made.digest != logged.digest:
        return f"{what} delivers {made.digest:.12}, and {logged.digest:.12} in the log"
    if made.weight != logged.weight:
        return f"{what} weighs {made.weight:.17g}, and {logged.weight:.17g} in the log"
    return None
