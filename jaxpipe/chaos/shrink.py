"""Permanent loss of devices: a run shrinks from four to three to two, and still uses all samples.

Under `jaxpipe run`, a device is lost: its rank is killed in each attempt as soon as that has
started, until an attempt leaves the device out. That one trains some steps, another device is lost,
and so on. Attempts with all ranks in between, in case a device has returned, end in the same way.

Every other trial has a plan of all that there is: replicas with partitions and microbatches of
their own, interleaved stages, and ranks of two devices::

    replica 0   ranks 0, 1   layers 2 1 1 2   4 microbatches of 1 sample     a rank is lost with the
    replica 1   ranks 2, 3   layers 1 2 2 1   2 microbatches of 2 samples    two devices of its host
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
from jaxpipe.plan import Pipeline, Plan, read_resolved_plan, write_plan
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.run.folder.prepare_run import PLAN_FILE
from jaxpipe.runtime.process.launched_rank import launched_rank
from jaxpipe.schedule import ScheduleKind
from jaxpipe.topo import load

SIZES = (4, 3, 2)
_STEPS_EACH = 5
_RESTARTS = 12  # seven are needed
_ARGUMENTS = (
    *("--restarts", str(_RESTARTS)),
    *("--hooks", "jaxpipe.chaos.harness.sample_log:recorder"),
)
_CLUSTER = "homogeneous:hosts=4,devices=2,delay_ms=0,bandwidth_gbps=1e6"
_TWO_DEVICES = ("env", "XLA_FLAGS=--xla_force_host_platform_device_count=2")
"""What starts a run whose ranks have two devices each: two emulated ones of the processor."""


def _undisturbed(setup: Setup) -> Path:
    return train_undisturbed(setup.folder / "undisturbed", setup.dataset)


def _trial(case: Case) -> None:
    is_unlike = case.seed % 2 == 1
    case.name = f"ranks lost{' of an unlike plan' * is_unlike}, seed {case.seed}"
    chance = case.chance()
    config = write_lossless_config(
        case.folder, case.dataset, plan=_write_unlike_plan(case.folder) if is_unlike else {}
    )
    gone: list[str] = []
    with started(
        config,
        case.dataset,
        command="run",
        arguments=_ARGUMENTS,
        before=_TWO_DEVICES if is_unlike else (),
    ) as run:
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


def _write_unlike_plan(folder: Path) -> dict[str, str]:
    """Write a plan file with all that a plan can have; return its section `[plan]`."""
    cluster, file = load(_CLUSTER), folder / "unlike.toml"
    plan = Plan(
        pipelines=(
            Pipeline(devices=(0, 2), peers=((1,), (3,)), cut=(2, 1, 1, 2), num_microbatches=4),
            Pipeline(
                devices=(4, 6),
                peers=((5,), (7,)),
                cut=(1, 2, 2, 1),
                num_microbatches=2,
                microbatch=2,
            ),
        ),
        schedule=ScheduleKind.INTERLEAVED,
        num_chunks=2,
        tied=True,
    )
    folder.mkdir(parents=True)
    write_plan(with_island_trees(plan, cluster.devices), cluster, file)
    return {"cluster": _CLUSTER, "file": str(file)}


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
