"""Train the small model on every network with every setting, and store the measurements."""

import gzip
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from experiments.compare_group.cases import Setting
from experiments.compare_group.real_runs import (
    Bench,
    Links,
    Run,
    in_namespaces,
    run_pipeline,
    run_zero3,
)
from experiments.compare_group.small import Network, Small, scaled_cluster, small_plans
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
    small: Small, folder: Path, *, links: Links, only: Sequence[str] | None = None
) -> list[Measured]:
    """Measure over one kind of links, and rewrite `real.json` after each run.

    Measurements over other links are kept, and those of other networks if `only` names some.

    Raises:
        CannotMeasureError: namespaces need rights or programs that are missing.
        RuntimeError: a rank failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    networks = [each for each in small.networks if not only or each.name in only]
    names = [network.name for network in networks]
    all_measured = others(read_measured(folder), names, links)
    for measured in _runs(small, networks, folder, links):
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


def others(
    all_measured: Sequence[Measured], networks: Sequence[str], links: Links
) -> list[Measured]:
    """Return the measurements to keep: those of other networks and other kinds of links.

    Namespaces with and without latency are measured together.
    """
    is_shaped = links is Links.SHAPED
    return [
        each
        for each in all_measured
        if each.network not in networks or (each.links is Links.SHAPED) != is_shaped
    ]


def read_measured(folder: Path) -> list[Measured]:
    """Read the stored measurements, if any."""
    if not (folder / FILE).exists():
        return []
    return msgspec.json.decode((folder / FILE).read_bytes(), type=list[Measured])


def _runs(
    small: Small, networks: Sequence[Network], folder: Path, links: Links
) -> Iterator[Measured]:
    run_all = _over_transport if links is Links.SHAPED else _over_namespaces
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
                for kind, setting, run in run_all(bench, plans, folder):
                    yield Measured(
                        network=network.name, links=kind, setting=setting, round=number, run=run
                    )


def _over_transport(
    bench: Bench, plans: Mapping[Setting, Plan], _: Path
) -> Iterator[tuple[Links, Setting, Run]]:
    for setting, plan in plans.items():
        folder = _fresh(bench, setting)
        yield Links.SHAPED, setting, run_pipeline(bench, plan, folder=folder, links=None)


def _over_namespaces(
    bench: Bench, plans: Mapping[Setting, Plan], folder: Path
) -> Iterator[tuple[Links, Setting, Run]]:
    """Run all settings, and store their traces.

    ZeRO-3 runs without latencies: each of its many collectives would wait for seven hops.
    """
    for setting, plan in plans.items():
        run_folder = _fresh(bench, setting)
        with in_namespaces(bench.cluster, plan, Links.NAMESPACES) as links:
            run = run_pipeline(bench, plan, folder=run_folder, links=links)
            yield Links.NAMESPACES, setting, run
        name = f"real-{bench.cluster.name}-{setting.letter}"
        with gzip.open(folder / f"{name}.trace.json.gz", "wb") as file:
            file.write((run_folder / "trace.json").read_bytes())
    plan = plans[Setting.OURS]
    with in_namespaces(bench.cluster, plan, Links.NO_LATENCY) as links:
        yield Links.NO_LATENCY, Setting.ZERO3, run_zero3(bench, plan, links=links)


def _fresh(bench: Bench, setting: Setting) -> Path:
    """Return the path of a new folder for a run."""
    folder = bench.scratch / f"{bench.cluster.name}-{setting.letter}"
    shutil.rmtree(folder, ignore_errors=True)
    return folder
