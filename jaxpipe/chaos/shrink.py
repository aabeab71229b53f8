"""Ranks that are gone for good: a run goes from four to three and to two, and feeds all samples.

Under `jaxpipe run`, a rank of each attempt is killed as soon as it is there, until the next attempt
has fewer; that one gets on for some steps, and so on. In the end every sample of every step must
have been fed once to the first stage and once to the last, by the attempt whose step counted, and
the losses be those of an undisturbed run: up to the rounding of sums over other numbers of
replicas. Training makes such a difference larger: with a learning rate of 0.01, one of 1e-8 doubles
every five steps. So the rate is 0.001 here, the run short, and a thousandth is allowed.
"""

import random
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from jaxpipe.chaos.fed import read_fed, wanted_rows, wrongly_fed
from jaxpipe.chaos.job import Started, started, wait_for_steps, wait_until, write_config
from jaxpipe.chaos.processes import wait_for_ends
from jaxpipe.chaos.trial import Family, Setup, Trial
from jaxpipe.chaos.tried import expect, tried
from jaxpipe.config import load_config
from jaxpipe.runtime.data import open_dataset
from jaxpipe.runtime.launch import seat
from jaxpipe.runtime.metrics import read_metrics

SIZES = (4, 3, 2)
_STEPS = 80
_STEPS_EACH = 5
_RESTARTS = 12
_TOLERANCE = 1e-3
_ENDS_WITHIN_S = 300.0


def _trials(setup: Setup) -> Iterator[Trial]:
    reference = _config(setup.folder / "undisturbed", setup.dataset)
    with started(reference, setup.dataset) as run:
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    expect(code == 0, f"an undisturbed run has ended with exit code {code}: {run.stderr}")
    for seed in range(setup.seed, setup.seed + setup.num_trials):
        config = _config(setup.folder / f"seed-{seed}", setup.dataset)
        work = partial(_trial, config, setup.dataset, run.folder, random.Random(seed))
        yield tried(f"ranks lost, seed {seed}", work)


def _config(folder: Path, dataset: Path) -> Path:
    """Write the configuration of a run that three ranks can do, too: a layer on each."""
    train = {"steps": _STEPS, "eval_every": _STEPS}
    changes = {"model": {"num_layers": 3}, "optimizer": {"learning_rate": 1e-3}}
    return write_config(folder, dataset, train=train, **changes)


def _trial(
    config: Path, dataset: Path, reference: Path, chance: random.Random, figures: dict[str, float]
) -> None:
    words = ("--restarts", str(_RESTARTS), "--rank-module", "jaxpipe.chaos.recording_rank")
    with started(config, dataset, command="run", words=words) as run:
        steps, num_kills = _STEPS_EACH, 0
        for size in SIZES[:-1]:
            expect(_size(run) == size, f"an attempt has {_size(run)} ranks, not {size}")
            wait_for_steps(run, steps=steps)
            while _size(run) == size:
                _lose_one(run, chance)
                num_kills += 1
            steps = run.num_steps() + _STEPS_EACH
        expect(_size(run) == SIZES[-1], f"an attempt has {_size(run)} ranks, not {SIZES[-1]}")
        code = run.wait(timeout_s=_ENDS_WITHIN_S)
    expect(code == 0, f"the run ends with exit code {code}: {run.stdout[-600:]}")
    figures["kills"] = num_kills
    _check_samples(config, dataset)
    figures["loss_differs"] = _check_losses(run.folder, reference)


def _size(run: Started) -> int:
    """Return how many ranks the attempt has that is under way, once they are there."""
    sizes: list[int] = []

    def are_there() -> bool:
        ranks = run.ranks()
        seats = [seat(process.environ()) for process in ranks.values()]
        sizes[:] = [here.num_ranks for here in seats if here is not None]
        return bool(sizes) and len(ranks) == sizes[0]

    wait_until(are_there, run, what="all ranks are there", timeout_s=_ENDS_WITHIN_S)
    return sizes[0]


def _lose_one(run: Started, chance: random.Random) -> None:
    """Kill a rank, and wait until its attempt is over."""
    ranks, job = run.ranks(), run.job()
    ranks[chance.choice(sorted(ranks))].kill()
    wait_for_ends(job, timeout_s=_ENDS_WITHIN_S)


def _check_samples(config: Path, dataset: Path) -> None:
    read = load_config(config)
    wanted = wanted_rows(
        open_dataset(dataset, verify=False).train,
        seed=read.run.seed,
        batch=read.train.batch,
        sequence=read.train.sequence or read.model.sequence,
        steps=read.train.steps,
    )
    why = wrongly_fed(read_fed(config.parent), wanted)
    expect(not why, why)


def _check_losses(run: Path, reference: Path) -> float:
    """Return by how much of it a loss differs from that of the undisturbed run, at most."""
    ours, theirs = (read_metrics(each / "metrics.jsonl") for each in (run, reference))
    expect([m.step for m in ours] == [m.step for m in theirs], "not every step was done once")
    differs = max(abs(m.loss / other.loss - 1) for m, other in zip(ours, theirs, strict=True))
    expect(differs <= _TOLERANCE, f"a loss differs by {differs:.2g} of it")  # a NaN does, too
    return differs


SHRINK = Family(
    name="shrink",
    does="kill ranks for good under `jaxpipe run`: from four ranks to three to two",
    aim="no sample lost or doubled; losses equal to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=5,
    trials=_trials,
)
