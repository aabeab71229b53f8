"""Run islands that wait for nobody: each a run of jaxpipe on its host, merged by a server."""

from pathlib import Path

from experiments.over_the_wire.curves import Kill, jaxpipe_points, kill_processes, run_watched
from experiments.over_the_wire.meters import processes_of
from experiments.over_the_wire.plans import MODEL, PYTHON, set_words
from experiments.over_the_wire.systems import Cell, Outcome
from jaxpipe.runtime.metrics.records import METRICS_FILE
from jaxpipe.topo.emulate import EngineKind, addresses, emulated
from jaxpipe.topo.machine_limits import usable_cores
from jaxpipe.topo.this_machine import THIS_MACHINE

_PORT = 4711
# An island needs the file that the server writes with its address.
_ONCE_THERE = ("sh", "-c", 'until test -e "$0"; do sleep 0.1; done; exec "$@"')


def run_islands_apart(cell: Cell) -> Outcome:
    """Run a cell: an island with a core on each host, and the server beside the first one."""
    hosts = [host.name for host in cell.cluster.hosts]
    folders = [cell.folder / f"island-{number}" for number in range(len(hosts))]
    server = cell.folder / "server"
    settings = set_words(_settings(cell, num_islands=len(hosts)))
    cores = usable_cores()
    with emulated(cell.cluster, kind=EngineKind.AUTO) as emulation:
        islands = [
            (
                *(*emulation.enter(host), "taskset", "--cpu-list", str(cores[number % len(cores)])),
                *(*_ONCE_THERE, str(server / "merge.json")),
                *(*PYTHON, "train", str(MODEL), *settings),
                *set_words(_island(server, folder, number)),
            )
            for number, (host, folder) in enumerate(zip(hosts, folders, strict=True))
        ]
        address = f"{addresses.data_address(0)}:{_PORT}"
        merge = (*PYTHON, "merge", str(MODEL), *settings, "--out", str(server), "--listen", address)
        kill = Kill(
            after=cell.kill_after,
            progress=folders[0] / METRICS_FILE,
            kill=lambda: kill_processes(processes_of(emulation, hosts[-1], program="")),
        )
        servers = [(*emulation.enter(hosts[0]), *merge)]
        meters = run_watched(emulation, islands, cell, kill, servers=servers)
    steps = [jaxpipe_points(folder / METRICS_FILE) for folder in folders]
    return Outcome(
        points=steps[0],
        clocks=tuple(tuple(point.seconds for point in points) for points in steps),
        meters=meters,
        recovery_s=kill.recovery_s,
    )


def _settings(cell: Cell, *, num_islands: int) -> tuple[str, ...]:
    """Return the changes that server and islands have in common.

    An island has an equal share of the batch, in one microbatch, and of all held-out samples.
    """
    train = cell.config.train
    batch, num_held_out = train.batch // num_islands, num_islands * (train.eval_batches or 1)
    loop = {"islands": num_islands, "every": cell.system.every, **cell.system.settings}
    return (
        *cell.changes,
        f"plan.cluster={THIS_MACHINE}",
        "plan.stages=1",
        "plan.replicas=1",
        f"plan.microbatch={batch}",
        f"train.batch={batch}",
        f"train.eval_batches={num_held_out}",
        *(f"quorum.{name}={value}" for name, value in loop.items()),
    )


def _island(server: Path, folder: Path, number: int) -> tuple[str, ...]:
    return (f"quorum.server={server}", f"quorum.island={number}", f"run.folder={folder}")
