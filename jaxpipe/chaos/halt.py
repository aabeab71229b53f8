"""SIGSTOP of several ranks in any phase of a run: in the time that is stated, all are named.

::

    start of MPI ─ compile ─ first step ─ held-out loss ─ save ─ end
    └ by this process, from outside       └ by hooks, inside     └ from outside, after the last
                                                                   heartbeat
"""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.chaos.harness.fault_plan import FaultPlan, Halt, have_halted, write_fault_plan
from jaxpipe.chaos.harness.kill_points import Point
from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.tiny_run import Started, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.runtime.watchdog import CauseKind, have_begun, read_cause
from jaxpipe.runtime.watchdog.heartbeat import heartbeat_file

_STARTUP_TIMEOUT_S, _TIMEOUT_S = 60.0, 20.0
_MARGIN_S = 15.0
"""For a busy machine: it looks once a second, and ends processes."""
_COMES_BY_WITHIN_S = 400.0
_MPI, _END = "the start of MPI", "the end"
_POINTS = (Point.COMPILE, Point.FIRST_FORWARD, Point.HELD_OUT, Point.BEFORE_SHARDS)
_MOMENTS: tuple[str, ...] = (_MPI, *_POINTS, _END)
_RANKS = ((2, (1,)), (2, (0, 1)), (4, (2,)), (4, (0, 3)))
"""The number of ranks, and those that are stopped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Halted:
    """Which of how many ranks are stopped, and when."""

    moment: str
    num_ranks: int
    victims: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the trial."""
        named = " and ".join(map(str, self.victims))
        return f"rank {named} of {self.num_ranks} at {self.moment}"

    @property
    def limit_s(self) -> float:
        """The time in which the run has to end."""
        is_start = self.moment in (_MPI, Point.COMPILE)
        return (_STARTUP_TIMEOUT_S if is_start else _TIMEOUT_S) + _MARGIN_S


def halted(seed: int) -> Halted:
    """Draw a trial: consecutive seeds take each moment, and 24 of them each number of ranks too.

    >>> halted(1).name, halted(23).name
    ('rank 1 of 2 at compile', 'rank 0 and 3 of 4 at the end')
    >>> len({halted(seed) for seed in range(24)})
    24
    """
    number = seed % (len(_MOMENTS) * len(_RANKS))
    num_ranks, victims = _RANKS[number // len(_MOMENTS)]
    moment = _MOMENTS[number % len(_MOMENTS)]
    return Halted(moment=moment, num_ranks=num_ranks, victims=victims)


def _trial(case: Case) -> None:
    drawn = halted(case.seed)
    case.name = drawn.name
    is_end = drawn.moment == _END
    config = write_config(
        case.folder,
        case.dataset,
        run={"timeout_s": _TIMEOUT_S, "startup_timeout_s": _STARTUP_TIMEOUT_S},
        plan={"replicas": drawn.num_ranks // 2},
        train={"steps": 4 if is_end else 100_000, "eval_every": 2},
    )
    point = Point(drawn.moment) if drawn.moment in _POINTS else None
    halt = None if point is None else Halt(point=point, victims=drawn.victims)
    write_fault_plan(config, FaultPlan(halt=halt))
    arguments = ("--hooks", "jaxpipe.chaos.harness.halter:halter")
    with started(config, case.dataset, arguments=arguments) as run:
        if halt is None:
            _stop_from_outside(run, drawn)
        else:
            run.wait_until(
                lambda: have_halted(config, halt), what=case.name, timeout_s=_COMES_BY_WITHIN_S
            )
        begin_s, job = time.monotonic(), run.job()
        code = run.wait(timeout_s=_COMES_BY_WITHIN_S)
        case.figures["gone_s"] = gone_s = wait_for_ends(job, timeout_s=_TIMEOUT_S) - begin_s
    case.figures["limit_s"] = drawn.limit_s
    expect((code == 0) == is_end and code != 2, f"exit code {code}: {run.stderr[-300:]}")
    _expect_named(run.folder, drawn)
    expect(gone_s <= drawn.limit_s, f"gone after {gone_s:.1f} s, not {drawn.limit_s:g} s")


def _stop_from_outside(run: Started, drawn: Halted) -> None:
    """Stop ranks when their processes begin, or after their last heartbeats."""
    victims = set(drawn.victims)

    def are_there() -> bool:
        return victims <= run.ranks().keys()

    def have_ended() -> bool:
        beats = (heartbeat_file(run.folder, rank).exists() for rank in victims)
        return not any(beats)

    run.wait_until(are_there, what="the ranks have begun", timeout_s=_COMES_BY_WITHIN_S)
    processes = run.ranks()
    if drawn.moment == _END:
        for what, is_so in (
            ("the first step", lambda: have_begun(run.folder)),
            ("the last heartbeat", have_ended),
        ):
            run.wait_until(is_so, what=what, timeout_s=_COMES_BY_WITHIN_S)
    for rank in sorted(victims):
        processes[rank].send_signal(signal.SIGSTOP)


def _expect_named(folder: Path, drawn: Halted) -> None:
    cause = read_cause(folder)
    expect(cause is not None, "there is no cause")
    assert cause is not None
    expect(cause.kind is CauseKind.STOPPED, f"the cause is no stopped rank: {cause}")
    for rank in drawn.victims:
        words = (f"rank {rank} is stopped (process ", f"rank {rank} has not begun")
        is_named = any(word in cause.message for word in words)
        expect(is_named, f"rank {rank} was stopped, but the cause is: {cause}")


HALT = Family(
    name="halt",
    does="SIGSTOP of one or two of 2 or 4 ranks: as MPI starts, while they compile, in the first "
    "step, in the held-out loss, in a save, or after the last",
    aim=f"within the timeout of the phase and {_MARGIN_S:g} s the run is gone, and the cause names "
    "all of them as stopped; exit code 0 if the last step is saved; nothing left behind",
    num_trials=3,
    num_trials_full=24,
    trials=one_by_one(_trial),
)
