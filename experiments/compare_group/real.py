"""Trains the small model on every network with every setting, and writes what was measured."""

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from experiments.compare_group.real_runs import (
    Bench,
    Links,
    Run,
    in_namespaces,
    run_kernel,
    run_shaped,
)
from experiments.compare_group.setting import Setting
from experiments.compare_group.small import Network, Small, scaled_cluster, small_plans
from jaxpipe.compare.system import System
from jaxpipe.plan import Plan

FILE = "real.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of one setting on one network."""

    network: str
    links: Links
    setting: Setting
    round: int
    run: Run


def measure(
    small: Small, folder: Path, *, python: Path | None, only: Sequence[str] | None = None
) -> list[Measured]:
    """Measure everything, and write `real.json` anew after each run.

    `python` is one with MPICH beside it; without it nothing runs in namespaces. Where `only` names
    networks, what was measured of the others stays.

    Raises:
        CannotMeasureError: namespaces need rights or programs that are missing.
        RuntimeError: a rank failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    networks = [each for each in small.networks if not only or each.name in only]
    names = [network.name for network in networks]
    all_measured = [each for each in read_measured(folder) if each.network not in names]
    for measured in _runs(small, networks, folder, python):
        all_measured.append(measured)
        text = json.dumps([asdict(each) for each in all_measured], indent=1)
        (folder / FILE).write_text(text + "\n")
        seconds = " ".join(f"{each:.2f}" for each in measured.run.step_s)
        print(
            f"{measured.network} | {measured.links} | {measured.setting} | round {measured.round}"
            f" | steps {seconds} s | last loss {measured.run.losses[-1]:.6f}",
            flush=True,
        )
    return all_measured


def read_measured(folder: Path) -> list[Measured]:
    """Read what was measured, if anything was."""
    if not (folder / FILE).exists():
        return []
    return msgspec.json.decode((folder / FILE).read_bytes(), type=list[Measured])


def _runs(
    small: Small, networks: Sequence[Network], folder: Path, python: Path | None
) -> Iterator[Measured]:
    with tempfile.TemporaryDirectory() as scratch:
        for network in networks:
            bench = Bench(
                cluster=scaled_cluster(network, small),
                config=Path(small.config),
                steps=small.steps,
                scratch=Path(scratch),
            )
            plans = small_plans(network, small)
            for number in range(small.rounds):
                for links, setting, run in _round(bench, plans, folder, python):
                    yield Measured(
                        network=network.name, links=links, setting=setting, round=number, run=run
                    )


def _round(
    bench: Bench, plans: dict[Setting, Plan], folder: Path, python: Path | None
) -> Iterator[tuple[Links, Setting, Run]]:
    for setting, plan in plans.items():
        run_folder = bench.scratch / f"{bench.cluster.name}-{setting.letter}"
        shutil.rmtree(run_folder, ignore_errors=True)
        yield Links.SHAPED, setting, run_shaped(bench, plan, folder=run_folder)
        picture = folder / f"real-{bench.cluster.name}-{setting.letter}.png"
        shutil.copyfile(run_folder / "timeline.png", picture)
    if python is None:
        return
    for setting, plan in plans.items():
        with in_namespaces(bench.cluster, plan) as links:
            run = run_kernel(bench, plan, System.PIPELINE, python=python, links=links)
            yield Links.KERNEL, setting, run
            if setting is Setting.OURS:
                run = run_kernel(bench, plan, System.ZERO3, python=python, links=links)
                yield Links.KERNEL, Setting.ZERO3, run
