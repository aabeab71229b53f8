"""Train over the same emulated links: `python -m experiments.over_the_wire.run --torch-python P`.

As root. For each network: `jaxpipe plan --export torch-csv` makes a plan; torch trains with its own
schedules and with ours, on the cut and the microbatches of that plan, and jaxpipe trains the plan.
Writes `results/runs.csv`, a row for each run, and `results/table.csv`, their medians. `--tiny` runs
jaxpipe alone, with a small model, on one network, and keeps nothing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from experiments.runtime_benchmark.runs import run_torch
from experiments.table import Row, append_csv, grouped, markdown, numbers, read_csv, write_csv
from jaxpipe import topo
from jaxpipe.config import load_config
from jaxpipe.plan import Plan, read_plan
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.topo.emulate import EngineKind, addresses, emulated

_HERE = Path(__file__).parent
_MODEL, _CLUSTERS, _RESULTS = _HERE / "model.toml", _HERE / "networks", _HERE / "results"
NETWORKS = ("campus", "universities", "continents", "home")
_PYTHON = (sys.executable, "-P", "-m", "jaxpipe")
_EXPORT = ("--export", "torch-csv")
_TORCH_SCHEDULES = ("gpipe", "1f1b")
_WARM_UP = 2
_TIMEOUT_S = 1200.0
_TINY = ("model.num_layers=2", "model.dim=32", "model.num_heads=2", "train.steps=4")


def main() -> None:
    """Measure, and write and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", type=Path, help="a Python with torch")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    if given.tiny:
        with _folder() as folder:
            print(markdown(measure("universities", folder, 0, torch_python=None, settings=_TINY)))
        return
    if given.torch_python is None:
        parser.error("--torch-python is missing: a Python with torch; or give --tiny")
    for number in range(given.rounds):
        for network in given.networks:
            with _folder() as folder:
                for row in measure(network, folder, number, torch_python=given.torch_python):
                    append_csv(row, _RESULTS / "runs.csv")
    table = summarise(read_csv(_RESULTS / "runs.csv"))
    write_csv(table, _RESULTS / "table.csv")
    print(markdown(table))


def measure(
    network: str,
    folder: Path,
    number: int,
    *,
    torch_python: Path | None,
    settings: Sequence[str] = (),
) -> list[Row]:
    """Return a row for each system over one network; `settings` change the model."""
    cluster = str(_CLUSTERS / f"{network}.toml")
    changes = (f"plan.cluster={cluster}", f"data.folder={folder}/data", *settings)
    plan_file = folder / "plan.toml"
    _run((*_PYTHON, "plan", str(_MODEL), *_sets(changes), "--out", str(plan_file), *_EXPORT))
    plan = read_plan(plan_file, topo.load(cluster))
    run = f"{folder}/run"
    train = (*_PYTHON, "train", str(_MODEL))
    train = (*train, *_sets((*changes, f"plan.file={plan_file}", f"run.folder={run}")))
    _run((*_PYTHON, "emulate", cluster, "--", *train))
    steps_s = [step.step_s for step in read_metrics(Path(run) / "metrics.jsonl")]
    config = load_config(_MODEL, changes, notice=None)
    tokens = config.train.batch * config.model.sequence
    rows = [("jaxpipe", plan.schedule_name, steps_s)]
    if torch_python is not None:
        for schedule in (*_TORCH_SCHEDULES, str(plan_file.with_suffix(".csv"))):
            seconds = _torch_steps(torch_python, network, plan, schedule, changes)
            is_ours = schedule not in _TORCH_SCHEDULES
            name = f"{plan.schedule_name} of jaxpipe" if is_ours else schedule
            rows.append(("torch", name, seconds))
    return [
        {
            "network": network,
            "system": system,
            "schedule": schedule,
            "run": number,
            "step_seconds": median(seconds[_WARM_UP:]),
            "tokens_per_second": tokens / median(seconds[_WARM_UP:]),
            "load": f"{os.getloadavg()[0]:.1f}",
        }
        for system, schedule, seconds in rows
    ]


def summarise(rows: Sequence[Row]) -> list[Row]:
    """Return the median of the runs of each system, and its speed over torch's own best."""
    seconds = {
        key: median(numbers(group, "step_seconds"))
        for key, group in grouped(rows, "network", "system", "schedule").items()
    }
    best = {
        network: min(seconds[network, "torch", schedule] for schedule in _TORCH_SCHEDULES)
        for network, _, _ in seconds
    }
    return [
        {
            "network": network,
            "system": system,
            "schedule": schedule,
            "step_seconds": step_s,
            "over_torch": best[network] / step_s,
        }
        for (network, system, schedule), step_s in seconds.items()
    ]


def _torch_steps(
    python: Path, network: str, plan: Plan, schedule: str, changes: Sequence[str]
) -> list[float]:
    """Train with torch over gloo, a rank on each host; return the seconds of each step."""
    config = load_config(_MODEL, changes, notice=None)
    names = ("num_layers", "dim", "num_heads", "sequence", "vocabulary")
    task = {
        "model": {name: getattr(config.model, name) for name in names},
        "plan": {"cut": plan.cut, "microbatch": plan.microbatch, "schedule": schedule},
        "batch": plan.batch,
        "steps": config.train.steps,
    }
    cluster = topo.load(str(_CLUSTERS / f"{network}.toml"))
    with emulated(cluster, kind=EngineKind.AUTO) as emulation:
        hosts = [emulation.enter(cluster.devices[d].host) for d in plan.pipelines[0].devices]
        settings = {"GLOO_SOCKET_IFNAME": addresses.DEVICE}
        result = run_torch(python, task, num_ranks=len(hosts), hosts=hosts, settings=settings)
    return result["step_s"]


@contextmanager
def _folder() -> Iterator[Path]:
    """Yield a folder with a data set."""
    with tempfile.TemporaryDirectory() as name:
        prepare(Source(), Path(name) / "data")
        yield Path(name)


def _sets(changes: Sequence[str]) -> tuple[str, ...]:
    return tuple(word for change in changes for word in ("--set", change))


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(
        command,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}")


if __name__ == "__main__":
    main()
