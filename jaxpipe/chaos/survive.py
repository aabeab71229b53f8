"""Ranks are killed one by one; the others continue in the same job while they are a majority.

::

    attempt 1    4 ranks ── one is killed ─► 3 ── one is killed ─► 2 ── one is killed ─► no majority
    attempt 2    4 ranks, from the newest checkpoint, as `jaxpipe run` starts them

Three continue with their own state: the replica of a lost stage has it. Two resume from a
checkpoint, for the stages of three ranks have no replicas; so do three with a sharded optimizer. Of
a model of two layers, two ranks keep their stages and the third has no work. A rank that is stopped
instead of killed is killed by a rank that detects it.
"""

import random
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from jaxpipe.chaos.harness.assertions import (
    ENDS_WITHIN_S,
    check_losses,
    check_samples,
    train_undisturbed,
    write_lossless_config,
)
from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.tiny_run import Started, started
from jaxpipe.chaos.harness.trial import Case, Family, Setup, expect, one_by_one
from jaxpipe.plan import read_resolved_plan
from jaxpipe.run.folder.prepare_run import PLAN_FILE
from jaxpipe.runtime.metrics.records import read_summary

_STEPS_EACH = 5
_CHECKPOINT_EVERY = 4
_ARGUMENTS = ("--restarts", "2", "--hooks", "jaxpipe.chaos.harness.sample_log:recorder")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Losses:
    """A run that loses ranks `by` a signal; `sizes` are the numbers of ranks after each loss."""

    name: str
    sizes: tuple[int, ...] = (4, 3, 2)
    num_layers: int = 6
    is_sharded: bool = False
    by: signal.Signals = signal.SIGKILL


_LOSSES = (
    _Losses(name="from memory, then from a checkpoint"),
    _Losses(name="from checkpoints", is_sharded=True),
    _Losses(name="with a rank to spare", num_layers=2, sizes=(4, 2)),
    _Losses(name="stopped, not killed", by=signal.SIGSTOP),
)


def _undisturbed(setup: Setup) -> Path:
    """Train each model of the trials; return the folder in which they are."""
    kinds = (
        _LOSSES[seed % len(_LOSSES)] for seed in range(setup.seed, setup.seed + setup.num_trials)
    )
    for num_layers in {losses.num_layers for losses in kinds}:
        folder = setup.folder / f"undisturbed-{num_layers}"
        train_undisturbed(folder, setup.dataset, model={"num_layers": num_layers})
    return setup.folder


def _trial(case: Case) -> None:
    losses, chance = _LOSSES[case.seed % len(_LOSSES)], case.chance()
    case.name = losses.name
    config = write_lossless_config(
        case.folder,
        case.dataset,
        run={"survive": "shrink"},
        model={"num_layers": losses.num_layers},
        checkpoint={"every": _CHECKPOINT_EVERY},
        optimizer={"sharded": losses.is_sharded},
    )
    with started(config, case.dataset, command="run", arguments=_ARGUMENTS) as run:
        _wait_for_steps_of(run, losses.sizes[0], steps=_STEPS_EACH)
        for size in losses.sizes[1:]:
            begin_s = _strike_one(run, chance, losses.by)
            _wait_for_steps_of(run, size, steps=1)
            case.figures[f"to_{size}_ranks_s"] = time.monotonic() - begin_s
            _wait_for_steps_of(run, size, steps=_STEPS_EACH)
        # Before the last strike: afterwards the ranks are no descendants of the run.
        job = run.job()
        begin_s = _strike_one(run, chance, losses.by)
        case.figures["over_s"] = wait_for_ends(job, timeout_s=ENDS_WITHIN_S) - begin_s
        code = run.wait(timeout_s=ENDS_WITHIN_S)
    run.expect_success(code)
    words = "no majority"
    expect(words in run.stdout, f"no rank reports that there is {words}: {run.stdout[-600:]}")
    check_samples(config, case.dataset)
    reference = case.reference / f"undisturbed-{losses.num_layers}" / "run"
    case.figures["loss_differs"] = check_losses(run.folder, reference)


def _strike_one(run: Started, chance: random.Random, by: signal.Signals) -> float:
    """Kill or stop a random rank at a random time, and return when."""
    time.sleep(chance.uniform(0.0, 0.5))
    ranks = run.ranks()
    ranks[chance.choice(sorted(ranks))].send_signal(by)
    return time.monotonic()


def _wait_for_steps_of(run: Started, num_ranks: int, *, steps: int) -> None:
    """Wait until a plan of `num_ranks` has done some steps."""
    path = run.folder / "metrics.jsonl"

    def are_done() -> bool:
        described = read_summary(path).description if path.exists() else None
        if described is None:
            return False
        lines = path.read_text().splitlines()
        # The steps of the latest plan: those after the last description in the file.
        since = next(n for n, line in enumerate(reversed(lines)) if line.startswith('{"run"'))
        # A smaller plan is in the file alone: it replaces the section of the configuration.
        plan = read_resolved_plan(run.folder / PLAN_FILE).plan
        return plan.num_ranks == num_ranks and since >= steps

    what = f"{num_ranks} ranks have done {steps} steps"
    run.wait_until(are_done, what=what, timeout_s=ENDS_WITHIN_S)


SURVIVE = Family(
    name="survive",
    does="kill or stop ranks of one job that continues (ULFM): four, three, two, and then one more",
    aim="no sample lost or doubled; losses equal to an undisturbed run's within 0.001 of them; "
    "without a majority the job ends, and `jaxpipe run` restarts it",
    num_trials=0,
    num_trials_full=8,
    trials=one_by_one(_trial, prepare=_undisturbed),
)
