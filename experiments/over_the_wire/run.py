"""All systems over the same emulated networks: `python -m experiments.over_the_wire.run`.

As root. Installs each peer from PyPI in an environment of its own, checks that all of them begin
with the loss of jaxpipe, and writes `results/curves.csv`, a row for each step, and
`results/runs.csv`, a row for each run; then the table and the pictures. `--tiny` runs jaxpipe
alone, with a small model, on one network, and keeps nothing.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from experiments.over_the_wire.environments import python_of
from experiments.over_the_wire.islands_apart import run_islands_apart
from experiments.over_the_wire.jaxpipe_run import run_jaxpipe
from experiments.over_the_wire.outcomes import (
    NETWORKS,
    RECOVERY,
    RESULTS,
    keep,
    run_row,
    write_table,
)
from experiments.over_the_wire.peer_run import PeerRunner, peer_first_loss
from experiments.over_the_wire.plans import MODEL
from experiments.over_the_wire.systems import (
    ISLANDS_APART,
    JAXPIPE,
    Cell,
    Outcome,
    Runner,
    System,
    read_systems,
)
from experiments.over_the_wire.task_files import first_losses, write_task
from experiments.table import markdown, read_csv
from jaxpipe import topo
from jaxpipe.config import load_config
from jaxpipe.runtime.data import Source, prepare

_CLUSTERS = Path(__file__).parent / "networks"
_HALF_CORES = {"unlike": ("there-0",)}
_TINY = ("model.num_layers=2", "model.dim=32", "model.num_heads=2", "train.steps=4")
_LOSS_TOLERANCE = 1e-4
# A rank is killed between two meetings of systems that meet seldom.
_KILL_AFTER = 4
_TINY_NETWORK, _TINY_EVERY = "universities", 2


def main() -> None:
    """Measure, and write and print the table."""
    given = _arguments()
    if given.table:
        print(markdown(write_table(given.results)))
        return
    changes = (*given.set, *(_TINY if given.tiny else ()))
    cells = wanted(given.only, given.networks)
    if given.tiny:
        cells = [
            (replace(system, every=min(system.every, _TINY_EVERY)), network)
            for system, network in cells
            if system.program == JAXPIPE and network == _TINY_NETWORK
        ]
    if given.kill:
        cells = [cell for cell in cells if cell[0].survives]
    check_first_losses([system for system, _ in cells], given.environments, changes)
    for number in range(given.rounds):
        for system, network in cells:
            begin_s = time.monotonic()
            cell, outcome = measure(system, network, given.environments, changes, kills=given.kill)
            print(markdown([run_row(cell, outcome, number=number)]))
            print(f"{time.monotonic() - begin_s:.0f} s in all", flush=True)
            if not given.tiny:
                keep(cell, outcome, given.results, number=number)
    if not given.tiny:
        folder = given.results
        print(markdown(read_csv(folder / RECOVERY) if given.kill else write_table(folder)))


def wanted(only: Sequence[str], networks: Sequence[str]) -> list[tuple[System, str]]:
    """Return systems and networks: all, or those of `only`, `SYSTEM`, or `SYSTEM/NETWORK`.

    Raises:
        ValueError: there is no such system or network.
    """
    hosts = {network: len(topo.load(cluster_of(network)).hosts) for network in networks}
    cells = [
        (system, network)
        for network, num_hosts in hosts.items()
        for system in read_systems()
        if system.runs_on(num_hosts)
    ]
    chosen: list[tuple[System, str]] = []
    for text in only:
        name, _, network = text.partition("/")
        matching = [cell for cell in cells if cell[0].matches(name) and network in ("", cell[1])]
        if not matching:
            names = sorted({system.name for system, _ in cells})
            raise ValueError(
                f"`--only {text}` matches nothing; systems are {', '.join(names)}, networks "
                f"{', '.join(networks)}"
            )
        chosen += matching
    return chosen if only else cells


def measure(
    system: System,
    network: str,
    environments: Path,
    changes: Sequence[str],
    *,
    kills: bool = False,
) -> tuple[Cell, Outcome]:
    """Run a system over a network in a new folder; `kills` kills a rank."""
    with _folder() as folder:
        cell = cell_of(system, network, folder, changes)
        if kills:
            cell = replace(cell, kill_after=_KILL_AFTER + system.every)
        outcome = runner_of(system, environments)(cell)
        return cell, replace(outcome, load=f"{os.getloadavg()[0]:.1f}")


def cluster_of(network: str) -> str:
    """Return the cluster file of a network."""
    return str(_CLUSTERS / f"{network}.toml")


def cell_of(system: System, network: str, folder: Path, changes: Sequence[str]) -> Cell:
    """Return the run of a system over a network, with its configuration."""
    cluster = topo.load(cluster_of(network))
    plan = tuple(change.format(hosts=len(cluster.hosts)) for change in system.plan)
    changes = (
        f"plan.cluster={cluster_of(network)}",
        f"data.folder={folder}/data",
        f"optimizer.learning_rate={system.learning_rate}",
        # Where ranks have met: their models are equal there.
        *([f"train.eval_every={system.every}"] if system.every else []),
        *changes,
    )
    return Cell(
        system=replace(system, plan=plan),
        network=network,
        cluster=cluster,
        config=load_config(MODEL, changes, notice=None),
        changes=changes,
        folder=folder,
        half_cores=_HALF_CORES.get(network, ()),
    )


def runner_of(system: System, environments: Path) -> Runner:
    """Return what runs a system."""
    if system.program == JAXPIPE:
        return run_jaxpipe
    if system.program == ISLANDS_APART:
        return run_islands_apart
    return PeerRunner(python=python_of(system.environment, environments))


def check_first_losses(
    systems: Sequence[System], environments: Path, changes: Sequence[str]
) -> None:
    """Check that all environments begin with the loss of jaxpipe, and print the differences.

    Raises:
        RuntimeError: one does not.
    """
    names = {system.environment: system for system in systems if system.environment}
    if not names:
        return
    with _folder() as folder:
        cell = cell_of(next(iter(names.values())), NETWORKS[0], folder, changes)
        values = {"schedule": "", "settings": {}, "cut": [], "microbatch": 0, "addresses": []}
        write_task(folder / "task", cell.config, values)
        (expected,) = first_losses(cell.config, num_parts=1)
        for name in names:
            loss = peer_first_loss(python_of(name, environments), folder / "task")
            print(f"first batch: {expected:.6f} in jaxpipe, {loss:.6f} in {name}", flush=True)
            if abs(loss - expected) > _LOSS_TOLERANCE:
                raise RuntimeError(f"{name} begins with loss {loss}, jaxpipe with {expected}")


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder with a data set."""
    with tempfile.TemporaryDirectory() as name:
        prepare(Source(), Path(name) / "data")
        yield Path(name)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="SYSTEM[/NETWORK]")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--environments", type=Path, default=Path("build/over_the_wire"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a change to model.toml"
    )
    parser.add_argument("--kill", action="store_true", help="kill a rank; write recovery.csv")
    parser.add_argument("--table", action="store_true", help="write the table again, run nothing")
    parser.add_argument("--tiny", action="store_true")
    return parser.parse_args()


if __name__ == "__main__":
    main()
