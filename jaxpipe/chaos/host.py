"""A host disappears: its processes, its network and its disk; the others continue without it.

Four ranks train on four hosts in namespaces, each with a disk of its own, under `jaxpipe run
--hosts`. One of them, other than the supervisor's, loses its links, and all its processes are
killed. The next attempt has a plan for the devices of the other three. Needs root.
"""

import random
import time
from collections.abc import Iterator
from functools import partial

from jaxpipe.chaos.harness.links import cut_off
from jaxpipe.chaos.harness.own_hosts import (
    NUM_HOSTS,
    STEPS_BEFORE,
    Case,
    HostsRun,
    hosts_run,
    trials_over_hosts,
)
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried


def _trials(setup: Setup) -> Iterator[Trial]:
    return trials_over_hosts(setup, _one, name="host")


def _one(case: Case) -> Trial:
    chance = random.Random(case.seed)
    victim, after_s = chance.randrange(1, NUM_HOSTS), chance.uniform(0.0, 2.0)
    work = partial(_trial, case, victim, after_s)
    return tried(f"host {victim} disappears {after_s:.2f} s after step {STEPS_BEFORE}", work)


def _trial(case: Case, victim: int, after_s: float, figures: dict[str, float]) -> None:
    with hosts_run(case.folder, case.dataset) as run:
        run.wait_for_steps(STEPS_BEFORE)
        time.sleep(after_s)
        begin_s = time.monotonic()
        disappear(run, victim)
        run.wait_until(lambda: run.said("attempt 2 continues"), what="the next attempt begins")
        figures["next_attempt_s"] = time.monotonic() - begin_s
        expect(
            run.said(f"hosts that do not answer: {run.names[victim]}\n"),
            f"{run.names[victim]} is not named: {run.started.stdout[-600:]}",
        )
        run.wait_for_step_after("attempt 2 continues")
        figures["next_step_s"] = time.monotonic() - begin_s
        run.finish(case, figures)


def disappear(run: HostsRun, victim: int) -> None:
    """Cut the links of a host, and kill its processes."""
    cut_off(run.emulation.owner.namespace(victim))
    run.kill(victim)


HOST = Family(
    name="host",
    does="a host of four disappears, with its processes, its network and its disk (namespaces)",
    aim="the host is named; the others continue; no sample lost or doubled; losses equal to an "
    "undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=20,
    trials=_trials,
)
