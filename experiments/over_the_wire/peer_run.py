"""Run a system of `peers/` over an emulated network: a process for each rank, on its host."""

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from experiments.over_the_wire.curves import (
    Kill,
    kill_processes,
    peer_clocks,
    peer_points,
    run_watched,
)
from experiments.over_the_wire.meters import processes_of
from experiments.over_the_wire.plans import MadePlan, make_plan
from experiments.over_the_wire.processes import SETTINGS
from experiments.over_the_wire.systems import Cell, Outcome
from experiments.over_the_wire.task_files import write_task
from jaxpipe.topo.emulate import EngineKind, addresses, emulated

_TRAIN = "experiments.over_the_wire.peers.train"
_TIMEOUT_S = 1200.0
_LIGHTHOUSE = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRunner:
    """Runs a system with the Python of its environment."""

    python: Path

    def __call__(self, cell: Cell) -> Outcome:
        """Run a cell."""
        task, steps = cell.folder / "task", cell.folder / "task" / "steps-0.jsonl"
        hosts, plan = self._write(cell, task)
        with emulated(cell.cluster, kind=EngineKind.AUTO) as emulation:
            commands = [
                (*emulation.enter(host), *self._command(cell, task, rank))
                for rank, host in enumerate(hosts)
            ]
            kill = Kill(
                after=cell.kill_after,
                progress=steps,
                # The last rank with all that it has started; nobody waits for it at the end.
                kill=lambda: (
                    kill_processes(processes_of(emulation, hosts[-1], program="")),
                    (task / f"done-{len(hosts) - 1}").touch(),
                ),
            )
            servers = [(*emulation.enter(hosts[0]), *server) for server in self._servers(cell)]
            meters = run_watched(emulation, commands, cell, kill, servers=servers)
        schedule = plan.schedule_name if plan and cell.system.takes_plan else ""
        return Outcome(
            points=peer_points(task),
            clocks=peer_clocks(task),
            meters=meters,
            schedule=schedule,
            recovery_s=kill.recovery_s,
        )

    def _write(self, cell: Cell, task: Path) -> tuple[list[str], MadePlan | None]:
        """Write the task; return the host of each rank, and the plan of a pipeline."""
        system, names = cell.system, [host.name for host in cell.cluster.hosts]
        settings = dict(system.settings) | {"every": system.every}
        plan = None
        devices = tuple(range(len(cell.cluster.devices)))
        if system.program == "pipelining":
            shape = (f"plan.stages={len(names)}", "plan.replicas=1")
            plan = make_plan(cell, shape, export=True)
            settings["file"] = str(plan.path.with_suffix(".csv"))
            devices = plan.devices
        hosts = [cell.cluster.devices[device].host for device in devices]
        values = {
            "schedule": system.schedule,
            "settings": settings,
            "cut": system.cut or (plan.cut if plan else ()),
            "microbatch": plan.microbatch if plan else 0,
            "addresses": [addresses.data_address(names.index(host)) for host in hosts],
        }
        write_task(task, cell.config, values)
        return hosts, plan

    def _command(self, cell: Cell, task: Path, rank: int) -> tuple[str, ...]:
        words = ("--system", cell.system.program, "--rank", str(rank), str(task))
        return (str(self.python), "-P", "-m", _TRAIN, *words)

    def _servers(self, cell: Cell) -> list[tuple[str, ...]]:
        if cell.system.program != "torchft_replica":
            return []
        return [(str(self.python.parent / "torchft_lighthouse"), *_LIGHTHOUSE)]


def peer_first_loss(python: Path, task: Path) -> float:
    """Return the loss of the first batch with the initial weights, in another Python."""
    done = subprocess.run(
        [str(python), "-P", "-m", _TRAIN, "--first-loss", str(task)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
        env=os.environ | SETTINGS,
    )
    return json.loads(done.stdout.splitlines()[-1])["loss"]
