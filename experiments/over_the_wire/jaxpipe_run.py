"""Run jaxpipe over an emulated network: plan, then train, as a user does."""

from experiments.over_the_wire.curves import Kill, jaxpipe_points, kill_processes, run_watched
from experiments.over_the_wire.meters import processes_of
from experiments.over_the_wire.plans import MODEL, PYTHON, best_islands, make_plan, set_words
from experiments.over_the_wire.systems import Cell, Outcome
from jaxpipe.runtime.metrics.records import METRICS_FILE
from jaxpipe.topo.emulate import EngineKind, emulated

_CHECKPOINT_EVERY = 5
# Arguments in /proc/PID/cmdline end with NUL; the daemon of Open MPI, whose files carry the name of
# jaxpipe as well, stays.
_RANK = "-m\0jaxpipe"


def run_jaxpipe(cell: Cell) -> Outcome:
    """Run a cell. Where a rank is to be killed, `jaxpipe run` restarts it from a checkpoint."""
    system, changes = cell.system, cell.system.plan
    plan = make_plan(cell, changes)
    run = cell.folder / "run"
    settings = [*plan.settings, f"run.folder={run}"]
    if system.every:
        settings += best_islands(cell, changes)
    words: tuple[str, ...] = ("train", str(MODEL))
    if cell.kill_after is not None:
        words = ("run", str(MODEL), "--restarts", "1")
        settings.append(f"checkpoint.every={system.every or _CHECKPOINT_EVERY}")
    command = (*PYTHON, *words, *set_words(settings))
    metrics = run / METRICS_FILE
    with emulated(cell.cluster, kind=EngineKind.AUTO, devices=plan.devices) as emulation:
        last_host = cell.cluster.devices[plan.devices[-1]].host
        kill = Kill(
            after=cell.kill_after,
            progress=metrics,
            kill=lambda: kill_processes(processes_of(emulation, last_host, program=_RANK)),
        )
        meters = run_watched(emulation, [command], cell, kill, settings=emulation.settings)
    return Outcome(
        points=jaxpipe_points(metrics),
        meters=meters,
        schedule=plan.schedule_name,
        recovery_s=kill.recovery_s,
    )
