"""Permanent loss of ranks: a run shrinks from four to three to two, and still uses all samples.

Under `jaxpipe run`, a rank of each attempt is killed as soon as it starts, until the next attempt
has fewer ranks; that one trains some steps, and so on.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.harness.assertions import (
    ENDS_WITHIN_S,
    check_losses,
    check_samples,
    train_undisturbed,
    write_lossless_config,
)
from jaxpipe.chaos.harness.processes import wait_for_ends
from jaxpipe.chaos.harness.tiny_run import Started, started, wait_for_steps, wait_until
from jaxpipe.chaos.harness.trial import Family, Setup, Trial, expect, tried
from jaxpipe.runtime.process.mpirun import launched_rank

SIZES = (4, 3, 2)
_STEPS_EACH = 5
_RESTARTS = 12  # three failures for each smaller size, and some to spare


def _trials(setup: Setup) -> Iterator[Trial]:
    reference = train_undisturbed(setup.folder / "undisturbed", setup.dataset)
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        config = write_lossless_config(setup.folder / f"seed-{seed}", setup.dataset)
        work = partial(_trial, config, setup.dataset, reference, random.Random(seed))
        yield tried(f"ranks lost, seed {seed}", work)


def _trial(
    config: Path, dataset: Path, reference: Path, chance: random.Random, figures: dict[str, float]
) -> None:
    arguments = (
        "--restarts",
        str(_RESTARTS),
        "--hooks",
        "jaxpipe.chaos.harness.sample_log:recorder",
    )
    with started(config, dataset, command="run", arguments=arguments) as run:
        steps, num_kills = _STEPS_EACH, 0
        for size in SIZES[:-1]:
            expect(_size(run) == size, f"an attempt has {_size(run)} ranks, not {size}")
            wait_for_steps(run, steps=steps)
            while _size(run) == size:
                _lose_one(run, chance)
                num_kills += 1
            steps = run.num_steps() + _STEPS_EACH
        expect(_size(run) == SIZES[-1], f"an attempt has {_size(run)} ranks, not {SIZES[-1]}")
        code = run.wait(timeout_s=ENDS_WITHIN_S)
    expect(code == 0, f"the run ends with exit code {code}: {run.stdout[-600:]}")
    figures["kills"] = num_kills
    check_samples(config, dataset)
    figures["loss_differs"] = check_losses(run.folder, reference)


def _size(run: Started) -> int:
    """Return the number of ranks of the current attempt, once all have started."""
    sizes: list[int] = []

    def are_there() -> bool:
        ranks = run.ranks()
        seats = [launched_rank(process.environ()) for process in ranks.values()]
        sizes[:] = [here.num_ranks for here in seats if here is not None]
        return bool(sizes) and len(ranks) == sizes[0]

    wait_until(are_there, run, what="all ranks have started", timeout_s=ENDS_WITHIN_S)
    return sizes[0]


def _lose_one(run: Started, chance: random.Random) -> None:
    """Kill a rank, and wait for the end of its attempt."""
    # Before the kill: afterwards the ranks are no descendants of the run.
    ranks, job = run.ranks(), run.job()
    ranks[chance.choice(sorted(ranks))].kill()
    wait_for_ends(job, timeout_s=ENDS_WITHIN_S)


SHRINK = Family(
    name="shrink",
    does="kill ranks for good under `jaxpipe run`: from four ranks to three to two",
    aim="no sample lost or doubled; losses equal to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=5,
    trials=_trials,
)
