"""kill -9 of any rank, anywhere: the run goes on, and ends as if nothing had been."""

import random
import re
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from jaxpipe.chaos.job import (
    NUM_RANKS,
    Started,
    started,
    wait_for_ranks,
    wait_until,
    write_config,
)
from jaxpipe.chaos.orders import Kill, Orders, Struck, note_struck, read_struck, write_orders
from jaxpipe.chaos.point import Point
from jaxpipe.chaos.processes import wait_for_ends
from jaxpipe.chaos.result import expect_equal
from jaxpipe.chaos.trial import Family, Setup, Trial
from jaxpipe.chaos.tried import expect, tried

GONE_WITHIN_S = 0.5
_NUM_STEPS = 10
_SECTIONS = {"train": {"steps": _NUM_STEPS}}
_ENDS_WITHIN_S = 200.0
_ROUND = 100
_STRIDE = 37


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which rank is killed: at a point, not before a step, or where there is none at any time.

    `part` says when, of how long an undisturbed run takes.
    """

    victim: int
    point: Point | None
    step: int
    part: float

    @property
    def name(self) -> str:
        """What the trial is called."""
        where = self.point or f"{self.part:.0%} of the time"
        return f"rank {self.victim} at {where}"


def target(seed: int) -> Target:
    """Draw what to kill: a hundred seeds in a row have each rank at each point, and random times.

    >>> hundred = [target(seed) for seed in range(100)]
    >>> len({(each.victim, each.point) for each in hundred if each.point})
    68
    >>> target(1).name
    'rank 1 at scalar-sum'
    """
    chance = random.Random(seed)
    step, part, any_rank = chance.randint(3, _NUM_STEPS - 1), chance.random(), chance.randrange(4)
    number, rank = divmod(seed * _STRIDE % _ROUND, NUM_RANKS)
    points = tuple(Point)
    if number < len(points):
        return Target(victim=rank, point=points[number], step=step, part=part)
    return Target(victim=any_rank, point=None, step=step, part=part)


def _trials(setup: Setup) -> Iterator[Trial]:
    reference = _undisturbed(setup, "undisturbed")
    aims = {seed: target(seed) for seed in range(setup.seed, setup.seed + setup.num_trials)}
    needs_length = any(aimed.point is None for aimed in aims.values())
    length_s = _length_s(setup, reference) if needs_length else 0.0
    for seed, aimed in aims.items():
        config = write_config(setup.folder / f"seed-{seed}", setup.dataset, **_SECTIONS)
        work = partial(_trial, aimed, config, setup.dataset, reference, length_s=length_s)
        yield tried(aimed.name, work)


def _length_s(setup: Setup, reference: Path) -> float:
    """Return how long a run takes when all is compiled, which must change nothing else."""
    begin_s = time.monotonic()
    again = _undisturbed(setup, "again")
    length_s = time.monotonic() - begin_s
    expect_equal(again, reference)
    return length_s


def _undisturbed(setup: Setup, name: str) -> Path:
    """Train without any harm, and return the run's folder."""
    config = write_config(setup.folder / name, setup.dataset, **_SECTIONS)
    with started(config, setup.dataset) as run:
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    expect(code == 0, f"an undisturbed run has ended with exit code {code}: {run.stderr}")
    return run.folder


def _trial(
    aimed: Target,
    config: Path,
    dataset: Path,
    reference: Path,
    figures: dict[str, float],
    *,
    length_s: float,
) -> None:
    point = aimed.point
    kill = None if point is None else Kill(point=point, victim=aimed.victim, step=aimed.step)
    write_orders(config, Orders(kill=kill))
    words = ("--restarts", "1", "--rank-module", "jaxpipe.chaos.rank")
    with started(config, dataset, command="run", words=words) as run:
        if point is None:
            job = _kill(run, aimed.victim, after_s=aimed.part * length_s)
        else:
            wait_for_ranks(run)
            job = run.job()
        gone_s = wait_for_ends(job, timeout_s=_ENDS_WITHIN_S) - _struck_s(config)
        figures["gone_s"] = gone_s
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    expect(code == 0, f"the run ends with exit code {code}: {run.stdout[-600:]}")
    expect_equal(run.folder, reference)
    named = re.search(r"^attempt 1 failed .*: rank (\d+)", run.stdout, flags=re.MULTILINE)
    figures["rank_named"] = float(named is not None and int(named[1]) == aimed.victim)
    expect(gone_s <= GONE_WITHIN_S, f"the job was gone after {gone_s:.2f} s, not {GONE_WITHIN_S} s")


def _kill(run: Started, victim: int, *, after_s: float) -> list[int]:
    """Kill a rank so many seconds from now, or as soon as it is there; return its job."""
    until_s, what = time.monotonic() + after_s, f"rank {victim} is killed"
    wait_until(lambda: time.monotonic() > until_s, run, what=what, timeout_s=after_s + 10.0)
    wait_until(lambda: victim in run.ranks(), run, what=what, timeout_s=_ENDS_WITHIN_S)
    job, process = run.job(), run.ranks()[victim]
    note_struck(run.config, Struck(victim=victim, doing="anything", at_s=time.monotonic()))
    process.send_signal(signal.SIGKILL)
    return job


def _struck_s(config: Path) -> float:
    struck = read_struck(config)
    expect(struck is not None, "the run has ended before its rank was killed")
    assert struck is not None
    return struck.at_s


KILL = Family(
    name="kill",
    does="kill -9 of one of 4 ranks, at 17 named points or at any time, under `jaxpipe run`",
    aim="weights, moments and losses bitwise equal to those of an undisturbed run; "
    f"the job gone within {GONE_WITHIN_S} s; nothing left behind",
    num_trials=4,
    num_trials_full=100,
    trials=_trials,
)
