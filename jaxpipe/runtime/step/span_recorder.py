"""Records the spans of a rank: those of the current step, and those kept for the trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from jaxpipe.schedule import Instruction
from jaxpipe.trace import Lane, Span


class SpanRecorder:
    """Collects the spans of one rank, on its own clock: `time.perf_counter`, as in transports.

    Spans of the current step are always recorded, since the bubble is measured in every step;
    `keep` selects the steps that stay for the trace. Traces have the ranks of the whole run, and
    peers are given by their numbers inside an island, which begins at `first_rank`.
    """

    def __init__(
        self,
        *,
        rank: int,
        clock: Callable[[], float],
        keep: Callable[[int], bool],
        first_rank: int = 0,
    ) -> None:
        self._rank = rank
        self._clock = clock
        self._keep = keep
        self._first_rank = first_rank
        self._kept: list[Span] = []
        self._step = 0
        self._current: list[Span] = []

    def start_step(self, step: int) -> None:
        """Start a step; keep or drop the spans of the last one."""
        if self._keep(self._step):
            self._kept += self._current
        self._step, self._current = step, []

    def now(self) -> float:
        """Return the time on this rank's clock, in seconds."""
        return self._clock()

    @contextmanager
    def span(
        self, lane: Lane, instruction: Instruction, *, name: str | None = None, **details: int
    ) -> Iterator[None]:
        """Record a span around the body."""
        start_s = self.now()
        yield
        self.add(lane, instruction, start_s=start_s, end_s=self.now(), name=name, **details)

    def add(
        self,
        lane: Lane,
        instruction: Instruction,
        *,
        start_s: float,
        end_s: float,
        name: str | None = None,
        peer: int | None = None,
        **details: int,
    ) -> None:
        """Record a span that has ended; `details` are its `num_bytes`.

        Its default name is that of the instruction; a part of one has a `name` of its own.
        """
        bucket = f" {instruction.bucket}" if instruction.bucket else ""
        span = Span(
            rank=self._rank,
            lane=lane,
            name=name or f"{instruction.op}{bucket}",
            start_s=start_s,
            end_s=end_s,
            step=self._step + 1,  # as in logs and metrics
            stage=instruction.stage,
            microbatch=instruction.microbatch,
            peer=None if peer is None else self._first_rank + peer,
            **details,
        )
        self._current.append(span)

    def computed_s(self) -> dict[tuple[int, int, int], float]:
        """Return when the arrays of this step were computed, by their messages.

        A message is the stage that computes, that which the array is for, and the microbatch.
        """
        to = {"forward": 1, "backward": -1, "backward-input": -1}
        return {
            (span.stage, span.stage + to[span.name], span.microbatch): span.end_s
            for span in self._current
            if span.lane is Lane.COMPUTE and span.name in to and span.microbatch is not None
        }

    def compute_s(self) -> float:
        """Return the seconds of forwards and backwards in this step."""
        return sum(s.end_s - s.start_s for s in self._current if s.lane is Lane.COMPUTE)

    def pipeline_s(self) -> float:
        """Return the seconds from the first to the last forward or backward of this step, or 0."""
        spans = [s for s in self._current if s.lane is Lane.COMPUTE]
        if not spans:
            return 0.0
        return max(s.end_s for s in spans) - min(s.start_s for s in spans)

    def kept(self, *, clock_offset_s: float) -> tuple[Span, ...]:
        """Return the kept spans on the clock of rank 0."""
        self.start_step(self._step)  # keeps or drops the spans of the last step
        return tuple(
            replace(s, start_s=s.start_s + clock_offset_s, end_s=s.end_s + clock_offset_s)
            for s in self._kept
        )
