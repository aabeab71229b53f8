"""Faults while a run starts: before the first step there is nothing to save, and nothing to lose.

SIGTERM ends the run with exit code 143. Under `jaxpipe run`, different ranks are killed in the
start-up of one attempt after another, as on spot machines; the attempt that is left alone has all
ranks.
"""

import signal
import time
from pathlib import Path

from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.tiny_run import NUM_RANKS, Started, started, write_config
from jaxpipe.chaos.harness.trial import Case, Family, expect, one_by_one
from jaxpipe.runtime.watchdog import read_cause

_NUM_KILLS = 3
_NUM_STEPS = 4
_ENDS_WITHIN_S = 300.0
_LATEST_S = 1.5
"""After the start of the ranks; importing jax takes longer."""


def _trial(case: Case) -> None:
    chance = case.chance()
    config = write_config(case.folder, case.dataset, train={"steps": _NUM_STEPS})
    if case.seed % 2:
        victims = chance.sample(range(NUM_RANKS), _NUM_KILLS)
        case.name = f"ranks {', '.join(map(str, victims))} killed in turn"
        _lose_in_turn(case, config, victims)
    else:
        after_s = chance.uniform(0.0, _LATEST_S)
        case.name = f"SIGTERM {after_s:.2f} s after the ranks have started"
        _terminate(case, config, after_s)


def _terminate(case: Case, config: Path, after_s: float) -> None:
    with started(config, case.dataset) as run:
        run.settle(steps=0, after_s=after_s)
        begin_s = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        case.figures["over_s"] = time.monotonic() - begin_s
    expect(code == 128 + signal.SIGTERM, f"exit code {code}: {run.stderr[-300:]}")
    expect(read_cause(run.folder) is None, f"a request is no failure: {read_cause(run.folder)}")


def _lose_in_turn(case: Case, config: Path, victims: list[int]) -> None:
    arguments = ("--restarts", str(len(victims) + 1))  # one more, for MPI may fail to start once
    seen = set[int]()
    with started(config, case.dataset, command="run", arguments=arguments) as run:
        for victim in victims:
            ranks = _ranks_of_next_attempt(run, seen)
            job = run.job()  # before the kill: later, the ranks are no descendants of the run
            ranks[victim].kill()
            wait_for_ends(job, timeout_s=_ENDS_WITHIN_S)
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    case.figures["attempts"] = 1.0 + run.stdout.count(" failed with exit code ")
    run.expect_success(code)
    run.expect_no_shrinking()
    expect(run.num_steps() == _NUM_STEPS, f"the metrics hold {run.num_steps()} steps")


def _ranks_of_next_attempt(run: Started, seen: set[int]):
    """Return the ranks of an attempt that has not been `seen`, once all have started."""
    found = run.ranks()

    def are_new() -> bool:
        found.clear()
        found.update(run.ranks())
        return len(found) == NUM_RANKS and not seen & {each.pid for each in found.values()}

    run.wait_until(are_new, what="all ranks have started", timeout_s=_ENDS_WITHIN_S)
    seen.update(each.pid for each in found.values())
    return found


START = Family(
    name="start",
    does="SIGTERM while a run starts; kill -9 of different ranks in the start-up of three attempts",
    aim="exit code 143 and no cause; the next attempts have all ranks",
    num_trials=2,
    num_trials_full=12,
    trials=one_by_one(_trial),
)
