"""Permanent loss of devices: a run shrinks from four to three to two, and still uses all samples.

Under `jaxpipe run`, a device is lost: its rank is killed in each attempt as soon as that has
started, until an attempt leaves the device out. That one trains some steps, another device is lost,
and so on. Attempts with all ranks in between, in case a device has returned, end in the same way.
"""

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
from jaxpipe.runtime.process.mpirun import launched_rank

SIZES = (4, 3, 2)
_STEPS_EACH = 5
_RESTARTS = 12  # seven are needed
_ARGUMENTS = (
    *("--restarts", str(_RESTARTS)),
    *("--hooks", "jaxpipe.chaos.harness.sample_log:recorder"),
)


def _undisturbed(setup: Setup) -> Path:
    return train_undisturbed(setup.folder / "undisturbed", setup.dataset)


def _trial(case: Case) -> None:
    case.name = f"ranks lost, seed {case.seed}"
    chance, config = case.chance(), write_lossless_config(case.folder, case.dataset)
    gone: list[str] = []
    with started(config, case.dataset, command="run", arguments=_ARGUMENTS) as run:
        steps, num_kills = _STEPS_EACH, 0
        for size in SIZES:
            while lost := _ranks_on(run, gone):
                _lose(run, lost[0])
                num_kills += 1
            expect(_size(run) == size, f"an attempt has {_size(run)} ranks, not {size}")
            if size == SIZES[-1]:
                break
            run.wait_for_steps(steps)
            gone.append(chance.choice(_devices(run)))
            steps = run.num_steps() + _STEPS_EACH
        code = run.wait(timeout_s=ENDS_WITHIN_S)
    run.expect_success(code)
    case.figures["kills"] = num_kills
    check_samples(config, case.dataset)
    case.figures["loss_differs"] = check_losses(run.folder, case.reference)


def _devices(run: Started) -> tuple[str, ...]:
    """Return the devices of the current attempt, in the order of its ranks."""
    return read_resolved_plan(run.folder / PLAN_FILE).devices


def _ranks_on(run: Started, gone: list[str]) -> list[int]:
    """Return the ranks of the current attempt whose devices are gone, once all have started."""
    size = _size(run)  # first: an attempt writes its plan before its ranks start
    return [rank for rank, device in enumerate(_devices(run)[:size]) if device in gone]


def _size(run: Started) -> int:
    """Return the number of ranks of the current attempt, once all have started."""
    sizes: list[int] = []

    def are_there() -> bool:
        ranks = run.ranks()
        seats = [launched_rank(process.environ()) for process in ranks.values()]
        sizes[:] = [here.num_ranks for here in seats if here is not None]
        return bool(sizes) and len(ranks) == sizes[0]

    run.wait_until(are_there, what="all ranks have started", timeout_s=ENDS_WITHIN_S)
    return sizes[0]


def _lose(run: Started, rank: int) -> None:
    """Kill a rank, and wait for the end of its attempt."""
    # Before the kill: afterwards the ranks are no descendants of the run.
    ranks, job = run.ranks(), run.job()
    ranks[rank].kill()
    wait_for_ends(job, timeout_s=ENDS_WITHIN_S)


SHRINK = Family(
    name="shrink",
    does="lose devices for good under `jaxpipe run`: from four ranks to three to two",
    aim="no sample lost or doubled; losses equal to an undisturbed run's within 0.001 of them",
    num_trials=0,
    num_trials_full=5,
    trials=one_by_one(_trial, prepare=_undisturbed),
)
