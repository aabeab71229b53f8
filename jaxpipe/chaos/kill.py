"""kill -9 of any rank at any point: the run recovers, and ends as if undisturbed."""

import os
import random
import re
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.chaos.harness.assertions import expect_equal
from jaxpipe.chaos.harness.fault_plan import (
    FaultPlan,
    Kill,
    Struck,
    note_struck,
    read_struck,
    write_fault_plan,
)
from jaxpipe.chaos.harness.kill_points import Point
from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.tiny_run import NUM_RANKS, Started, started, undisturbed, write_config
from jaxpipe.chaos.harness.trial import Case, Family, Setup, expect, one_by_one

GONE_WITHIN_S = 0.5
_NUM_STEPS = 10
_SECTIONS = {"train": {"steps": _NUM_STEPS}}
_ENDS_WITHIN_S = 600.0
# Seconds of a start and of a step, roughly: random kills fall into them.
_START_S = 4.0
_STEP_S = 0.3
_ROUND = 100
# Coprime to 100: consecutive seeds are far apart, and a hundred of them meet each place once.
_STRIDE = 37


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The rank to kill, at a point not before a step; without a point, at a time.

    The time is `after_s` after the step is done, or with step 0 after the start.
    """

    victim: int
    point: Point | None
    step: int
    after_s: float

    @property
    def name(self) -> str:
        """The name of the trial."""
        since = f"step {self.step}" if self.step else "its start"
        where = f"at {self.point}" if self.point else f"{self.after_s:.2f} s after {since}"
        return f"rank {self.victim} {where}"


def target(seed: int) -> Target:
    """Draw a target: a hundred consecutive seeds cover each rank at each point, and random times.

    >>> hundred = [target(seed) for seed in range(100)]
    >>> len({(each.victim, each.point) for each in hundred if each.point})
    68
    >>> target(1).name, target(2).name
    ('rank 1 at scalar-sum', 'rank 0 0.34 s after its start')
    """
    chance = random.Random(seed)
    number, rank = divmod(seed * _STRIDE % _ROUND, NUM_RANKS)
    points = tuple(Point)
    if number < len(points):
        step = chance.randint(3, _NUM_STEPS - 1)
        return Target(victim=rank, point=points[number], step=step, after_s=0.0)
    # From -3: the start, step 0, is drawn four times as often as any step.
    rank, step = chance.randrange(NUM_RANKS), max(0, chance.randint(-3, _NUM_STEPS - 1))
    after_s = chance.uniform(0.0, _STEP_S if step else _START_S)
    return Target(victim=rank, point=None, step=step, after_s=after_s)


def _undisturbed(setup: Setup) -> Path:
    config = write_config(setup.folder / "undisturbed", setup.dataset, **_SECTIONS)
    return undisturbed(config, setup.dataset, timeout_s=_ENDS_WITHIN_S)


def _trial(case: Case) -> None:
    aimed = target(case.seed)
    case.name = aimed.name
    config = write_config(case.folder, case.dataset, **_SECTIONS)
    point = aimed.point
    kill = None if point is None else Kill(point=point, victim=aimed.victim, step=aimed.step)
    write_fault_plan(config, FaultPlan(kill=kill))
    # Two restarts, for MPI may fail to start once.
    arguments = ("--restarts", "2", "--hooks", "jaxpipe.chaos.harness.injector:injector")
    with started(config, case.dataset, command="run", arguments=arguments) as run:
        if point is None:
            job = _kill(run, aimed)
        else:
            run.wait_for_ranks()
            job = run.job()
        gone_s = wait_for_ends(job, timeout_s=_ENDS_WITHIN_S) - _struck_s(config)
        case.figures["gone_s"] = gone_s
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    run.expect_success(code)
    expect_equal(run.folder, case.reference)
    failures = re.findall(r"^attempt \d+ failed .*", run.stdout, flags=re.MULTILINE)
    case.figures["attempts"] = 1.0 + len(failures)
    named = [int(rank) for line in failures for rank in re.findall(r": rank (\d+)", line)]
    case.figures["rank_named"] = float(named == [aimed.victim])
    expect(gone_s <= GONE_WITHIN_S, f"the job was gone after {gone_s:.2f} s, not {GONE_WITHIN_S} s")


def _kill(run: Started, aimed: Target) -> list[int]:
    """Kill a rank at its time; return the processes of its job."""
    victim, what = aimed.victim, f"rank {aimed.victim} is killed"
    run.wait_until(lambda: victim in run.ranks(), what=what, timeout_s=_ENDS_WITHIN_S)
    run.wait_for_steps(aimed.step)
    until_s = time.monotonic() + aimed.after_s
    run.wait_until(lambda: time.monotonic() >= until_s, what=what, timeout_s=_ENDS_WITHIN_S)
    # Before the kill: without mpirun, its ranks are no descendants any more.
    job, process = run.job(), run.ranks().get(victim)
    if process is not None:
        # Before the kill as well: `gone_s` counts from here.
        note_struck(run.config, Struck(victim=victim, doing="anything", at_s=time.monotonic()))
        os.kill(process.pid, signal.SIGKILL)
    return job


def _struck_s(config: Path) -> float:
    struck = read_struck(config)
    expect(struck is not None, "the run ended before its rank was killed")
    assert struck is not None
    return struck.at_s


KILL = Family(
    name="kill",
    does="kill -9 of one of 4 ranks, at 17 named points or at random times, under `jaxpipe run`",
    aim="weights, moments and losses bitwise equal to those of an undisturbed run; "
    f"the job gone within {GONE_WITHIN_S} s; nothing left behind",
    num_trials=4,
    num_trials_full=100,
    trials=one_by_one(_trial, prepare=_undisturbed),
)
