"""Faults while a run starts: before the first step there is nothing to save, and nothing to lose.

SIGTERM ends the run with exit code 143. Under `jaxpipe run`, different ranks are killed in the
start-up of one attempt after another, as on spot machines; the attempt that is left alone has all
ranks.
"""

import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.tiny_run import (
    NUM_RANKS,
    Started,
    started,
    wait_for_ranks,
    wait_until,
    write_config,
)
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried
from jaxpipe.runtime.watchdog import read_cause

_NUM_KILLS = 3
_NUM_STEPS = 4
_ENDS_WITHIN_S = 300.0
_LATEST_S = 1.5
"""After the start of the ranks; importing jax takes longer."""


def _trials(setup: Setup) -> Iterator[Trial]:
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        chance = random.Random(seed)
        config = write_config(
            setup.folder / f"seed-{seed}", setup.dataset, train={"steps": _NUM_STEPS}
        )
        if seed % 2:
            victims = chance.sample(range(NUM_RANKS), _NUM_KILLS)
            name = f"ranks {', '.join(map(str, victims))} killed in turn"
            yield tried(name, partial(_lose_in_turn, config, setup.dataset, victims))
        else:
            after_s = chance.uniform(0.0, _LATEST_S)
            name = f"SIGTERM {after_s:.2f} s after the ranks have started"
            yield tried(name, partial(_terminate, config, setup.dataset, after_s=after_s))


def _terminate(config: Path, dataset: Path, figures: dict[str, float], *, after_s: float) -> None:
    with started(config, dataset) as run:
        wait_for_ranks(run)
        time.sleep(after_s)
        run.ranks()  # notes the memory that they share
        begin_s = time.monotonic()
        run.process.send_signal(signal.SIGTERM)
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
        figures["over_s"] = time.monotonic() - begin_s
    expect(code == 128 + signal.SIGTERM, f"exit code {code}: {run.stderr[-300:]}")
    expect(read_cause(run.folder) is None, f"a request is no failure: {read_cause(run.folder)}")


def _lose_in_turn(
    config: Path, dataset: Path, victims: list[int], figures: dict[str, float]
) -> None:
    arguments = ("--restarts", str(len(victims) + 1))  # one more, for MPI may fail to start once
    seen = set[int]()
    with started(config, dataset, command="run", arguments=arguments) as run:
        for victim in victims:
            ranks = _ranks_of_next_attempt(run, seen)
            job = run.job()  # before the kill: later, the ranks are no descendants of the run
            ranks[victim].kill()
            wait_for_ends(job, timeout_s=_ENDS_WITHIN_S)
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    figures["attempts"] = 1.0 + run.stdout.count(" failed with exit code ")
    expect(code == 0, f"the run ends with exit code {code}: {run.stdout[-600:]}")
    expect("with fewer ranks" not in run.stdout, f"it has shrunk: {run.stdout[-600:]}")
    expect(run.num_steps() == _NUM_STEPS, f"the metrics hold {run.num_steps()} steps")


def _ranks_of_next_attempt(run: Started, seen: set[int]):
    """Return the ranks of an attempt that has not been `seen`, once all have started."""
    found = run.ranks()

    def are_new() -> bool:
        found.clear()
        found.update(run.ranks())
        return len(found) == NUM_RANKS and not seen & {each.pid for each in found.values()}

    wait_until(are_new, run, what="all ranks have started", timeout_s=_ENDS_WITHIN_S)
    seen.update(each.pid for each in found.values())
    return found


START = Family(
    name="start",
    does="SIGTERM while a run starts; kill -9 of different ranks in the start-up of three attempts",
    aim="exit code 143 and no cause; the next attempts have all ranks",
    num_trials=2,
    num_trials_full=12,
    trials=_trials,
)
