"""Predict torch's steps with `jaxpipe simulate`, then measure them over the same emulated links.

    python -m experiments.torch_predicted.run --torch-python PYTHON [--networks home] [--rounds 3]

As root. The stages of torch are profiled once, on two cores of this machine; their seconds, the
exported schedule and the cluster file give the prediction. Writes `results/table.csv`.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.runtime_benchmark.runs import run_commands, run_torch
from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.config import load_config
from jaxpipe.topo.emulate import EngineKind, addresses, emulated

_HERE = Path(__file__).parent
_WIRE = _HERE.parent / "over_the_wire"
MODEL, _CLUSTERS = _WIRE / "model.toml", _WIRE / "networks"
NETWORKS = ("campus", "universities", "continents", "home")
_CUT, _MICROBATCH, _STEPS, _WARM_UP = (3, 3), 4, 9, 2
_TIMEOUT_S = 600.0


def main() -> None:
    """Measure, write and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--torch-python", type=Path, required=True, help="a Python with torch")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=NETWORKS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    results = _HERE / "results"
    results.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        rows = list(_rows(Path(name), given.torch_python, given.networks, rounds=given.rounds))
    write_csv(rows, results / "table.csv")
    print(markdown(rows))


def _rows(folder: Path, python: Path, networks: Sequence[str], *, rounds: int) -> Iterator[Row]:
    stages = _stages(folder, python)
    print(json.dumps(stages, indent=2), file=sys.stderr)
    for network in networks:
        exported = _exported(network, folder / network)
        for name, schedule in _schedules(folder, exported).items():
            # Schedules of torch's own classes post a receive when they need it.
            profile = profile_file(folder, stages, posts_ahead=schedule.endswith(".csv"))
            predicted_s = predicted(network, schedule, profile)
            runs = [_measured(python, network, schedule) for _ in range(rounds)]
            measured_s = median(runs)
            yield {
                "network": network,
                "schedule": name,
                "predicted_s": predicted_s,
                "measured_s": measured_s,
                "error": predicted_s / measured_s - 1,
                "spread": (max(runs) - min(runs)) / measured_s,
                "load": f"{os.getloadavg()[0]:.1f}",
            }


def _schedules(folder: Path, exported: Path) -> dict[str, str]:
    """Return what torch runs, by a name: its own schedules, then files of compute instructions."""
    files = {"1f1b from a file": folder / "1f1b.csv", "jaxpipe's": exported}
    return {"gpipe": "gpipe", "1f1b": "1f1b"} | {name: str(path) for name, path in files.items()}


def _stages(folder: Path, python: Path) -> list[dict[str, float]]:
    """Measure torch's stages without a network between them."""
    files = {name: folder / f"{name}.csv" for name in ("1f1b", "zb-h1")}
    for name, path in files.items():
        words = settings(NETWORKS[0], f"plan.schedule={name}")
        run_jaxpipe("show", str(MODEL), *words, "--schedule-csv", str(path))
    task = {**_task(), "schedules": [str(path) for path in files.values()]}
    words = ("-m", "experiments.torch_predicted.torch_stages")
    sizes = ("--num-ranks", str(len(_CUT)))
    commands = [(str(python), *words, *sizes, "--rank", str(rank)) for rank in range(len(_CUT))]
    return run_commands(commands, task)


def profile_file(folder: Path, stages: list[dict[str, float]], *, posts_ahead: bool) -> Path:
    """Write the profile of torch: over gloo, no byte of a message leaves before its receive."""
    profile = {
        "device": "a core, torch",
        "microbatch": _MICROBATCH,
        "stages": stages,
        "software": {"eager_bytes": 0, "posts_ahead": posts_ahead},
    }
    path = folder / "profile.json"
    path.write_text(json.dumps(profile, indent=2))
    return path


def _exported(network: str, folder: Path) -> Path:
    """Plan over a network, and return the schedule that is exported for torch."""
    folder.mkdir()
    plan = folder / "plan.toml"
    run_jaxpipe("plan", str(MODEL), *settings(network), "--out", str(plan), "--export", "torch-csv")
    return plan.with_suffix(".csv")


def predicted(network: str, schedule: str, profile: Path) -> float:
    """Return the simulated seconds of a step, of a schedule by name or in a file."""
    field = "schedule_file" if schedule.endswith(".csv") else "schedule"
    words = settings(network, f"plan.{field}={schedule}", f"paced.profile={profile}")
    return json.loads(run_jaxpipe("simulate", str(MODEL), *words, "--json"))["seconds"]


def _measured(python: Path, network: str, schedule: str) -> float:
    """Train with torch over gloo, a rank on each host; return the median seconds of a step."""
    task = _task()
    task["plan"]["schedule"] = schedule
    cluster = topo.load(str(_CLUSTERS / f"{network}.toml"))
    with emulated(cluster, kind=EngineKind.AUTO) as emulation:
        hosts = [emulation.enter(device.host) for device in cluster.devices]
        environment = {"GLOO_SOCKET_IFNAME": addresses.DEVICE}
        result = run_torch(python, task, num_ranks=len(hosts), hosts=hosts, settings=environment)
    return median(result["step_s"][_WARM_UP:])


def _task() -> dict[str, Any]:
    config = load_config(MODEL, (), notice=None)
    names = ("num_layers", "dim", "num_heads", "sequence", "vocabulary")
    return {
        "model": {name: getattr(config.model, name) for name in names},
        "plan": {"cut": _CUT, "microbatch": _MICROBATCH},
        "batch": config.train.batch,
        "steps": _STEPS,
    }


def settings(network: str, *changes: str) -> tuple[str, ...]:
    """Return the options for two stages over a network, with changes."""
    cut = ",".join(map(str, _CUT))
    fixed = (
        f"plan.cluster={_CLUSTERS / network}.toml",
        f"plan.stages={len(_CUT)}",
        "plan.replicas=1",
        f"plan.cut=[{cut}]",
        f"plan.microbatch={_MICROBATCH}",
    )
    return tuple(word for change in (*fixed, *changes) for word in ("--set", change))


def run_jaxpipe(*words: str) -> str:
    """Run a command of jaxpipe; return what it says."""
    done = subprocess.run(
        (sys.executable, "-P", "-m", "jaxpipe", *words),
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"jaxpipe {' '.join(words)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
