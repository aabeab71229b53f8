"""A host disappears: its processes, its network and its disk; the others continue without it.

Four ranks train on four hosts in namespaces, each with a disk of its own, under `jaxpipe run
--hosts`. One of them, other than the supervisor's, loses its links, and all its processes are
killed. The next attempt has a plan for the devices of the other three. Needs root.
"""

import time

from jaxpipe.chaos.harness.emulated_hosts import (
    NUM_HOSTS,
    STEPS_BEFORE,
    HostsRun,
    cut_off,
    hosts_run,
    over_hosts,
)
from jaxpipe.chaos.harness.trial import Case, Family, expect


def _trial(case: Case) -> None:
    chance = case.chance()
    victim, after_s = chance.randrange(1, NUM_HOSTS), chance.uniform(0.0, 2.0)
    case.name = f"host {victim} disappears {after_s:.2f} s after step {STEPS_BEFORE}"
    with hosts_run(case.folder, case.dataset) as run:
        run.settle(after_s=after_s)
        begin_s = time.monotonic()
        disappear(run, victim)
        run.wait_until(lambda: run.said("attempt 2 continues"), what="the next attempt begins")
        case.figures["next_attempt_s"] = time.monotonic() - begin_s
        expect(
            run.said(f"hosts that do not answer: {run.names[victim]}\n"),
            f"{run.names[victim]} is not named: {run.started.stdout[-600:]}",
        )
        run.wait_for_step_after("attempt 2 continues")
        case.figures["next_step_s"] = time.monotonic() - begin_s
        run.finish(case)


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
    trials=over_hosts(_trial, name="host"),
)
