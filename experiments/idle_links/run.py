"""Measure silences and remedies, as root: `python -m experiments.idle_links.run [PART ...]`.

Two tables: messages after a silence between two hosts, and steps of a training run over four
regions of DT-FM's case 5. TCP is the kernel's, with one remedy at a time. Writes
`results/bursts.csv` and `results/training.csv`.
"""

import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

_HERE = Path(__file__).parent
_MODEL = _HERE / "model.toml"
_PYTHON = (sys.executable, "-P", "-m")
_TIMEOUT_S = 600.0
_FIRST_STEPS = 2
"""Connections are opened and windows grow in the first steps."""


def main() -> None:
    """Measure the named parts; by default, both. Write a table per part."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    parts = sys.argv[1:] or ["bursts", "training"]
    for part, measure in (("bursts", burst_row), ("training", training_row)):
        if part in parts:
            shared, remedies = cases[part], cases["remedies"]
            names = counted(shared["remedies"], part)
            rows = [measure(shared, remedies[name]) for name in names]
            (_HERE / "results").mkdir(exist_ok=True)
            write_csv(rows, _HERE / "results" / f"{part}.csv")
            print(markdown(rows))


def burst_row(case: Mapping[str, Any], remedy: Mapping[str, Any]) -> Row:
    """Return the seconds of the first message, of the first after a silence, and of the others.

    Raises:
        RuntimeError: the run failed.
    """
    numbers = [case[name] for name in ("pause_s", "num_bytes", "num_messages", "num_bursts")]
    program = "experiments.idle_links.bursts"
    ranks = (*launch_command(find_mpirun(), num_ranks=2), sys.executable, "-m", program)
    warm = "warm" if remedy["keep_warm"] else "cold"
    printed = emulate(case["cluster"], remedy, (*ranks, warm, *map(str, numbers)))
    bursts = json.loads(next(line for line in printed.splitlines() if line.startswith("[[")))
    later = [second for burst in bursts[1:] for second in burst[1:]]
    return {
        "remedy": remedy["name"],
        "pause_s": case["pause_s"],
        "bytes": case["num_bytes"],
        "first_ever_s": f"{bursts[0][0]:.2f}",
        "after_silence_s": f"{median(burst[0] for burst in bursts[1:]):.2f}",
        "lowest_s": f"{min(burst[0] for burst in bursts[1:]):.2f}",
        "highest_s": f"{max(burst[0] for burst in bursts[1:]):.2f}",
        "others_s": f"{median(later):.2f}",
        "load": f"{os.getloadavg()[0]:.0f}",
    }


def training_row(case: Mapping[str, Any], remedy: Mapping[str, Any]) -> Row:
    """Return the seconds of a step and the last loss.

    Raises:
        RuntimeError: the run failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        changes = (f"run.folder={folder}/run", f"run.keep_warm={str(remedy['keep_warm']).lower()}")
        sets = [word for change in changes for word in ("--set", change)]
        train = (*_PYTHON, "jaxpipe", "train", str(_MODEL), *sets)
        emulate(case["cluster"], remedy, train)
        metrics = read_metrics(Path(folder) / "run" / "metrics.jsonl")
    steps_s = [each.step_s for each in metrics]
    steady_s = steps_s[_FIRST_STEPS:]
    return {
        "remedy": remedy["name"],
        "first_step_s": f"{steps_s[0]:.2f}",
        "step_s": f"{median(steady_s):.2f}",
        "lowest_s": f"{min(steady_s):.2f}",
        "highest_s": f"{max(steady_s):.2f}",
        "last_loss": repr(metrics[-1].loss),
        "load": f"{os.getloadavg()[0]:.0f}",
    }


def emulate(cluster: str, remedy: Mapping[str, Any], command: Sequence[str]) -> str:
    """Run a command over the emulated links of a cluster; return its output."""
    sysctls = [word for each in remedy.get("sysctls", ()) for word in ("--sysctl", each)]
    options = ("--engine", "relay", "--tcp", remedy.get("tcp", "kernel"), *sysctls)
    done = subprocess.run(
        (*_PYTHON, "jaxpipe", "emulate", cluster, *options, "--", *command),
        env={**os.environ, "JAX_PLATFORMS": "cpu", **remedy.get("environment", {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",  # a model of few steps writes samples that are no text
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {done.returncode}:\n{done.stdout}")
    return done.stdout


if __name__ == "__main__":
    main()
