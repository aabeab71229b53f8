"""Probe, plan, train and compare, as root: `python -m experiments.probe_to_run.run [--scale S]`.

The emulator reads `hidden.toml`. The planner reads the cluster file of a probe, and a profile that
was measured on this machine. Each command is one that a user types; they are printed. Writes
`results/trial.csv`.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.runtime.process.mpirun import find_mpirun, launch_command

_HERE = Path(__file__).parent
_LINKS = _HERE / "hidden.toml"
_MODEL = _HERE / "model.toml"
_JAXPIPE = (sys.executable, "-P", "-m", "jaxpipe")
_TIMEOUT_S = 300.0
_FIRST_STEPS = 2
"""Connections are opened and windows grow in the first steps."""


def main() -> None:
    """Run the trial, and write its table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=2.0, help="slows links down; default 2")
    scale: float = parser.parse_args().scale
    began_s, load = time.monotonic(), os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        found = trial(Path(folder), scale=scale)
    row = {**found, "load": f"{load:.0f}", "trial_s": f"{time.monotonic() - began_s:.0f}"}
    (_HERE / "results").mkdir(exist_ok=True)
    write_csv([row], _HERE / "results" / "trial.csv")
    print(markdown([row]))


def trial(folder: Path, *, scale: float) -> Row:
    """Return the predicted and the measured seconds of a step.

    Raises:
        RuntimeError: a command failed.
    """
    found, plan, profile, run = (folder / n for n in ("found.toml", "plan.toml", "p.json", "run"))
    emulate = ("emulate", str(_LINKS), "--scale", f"{scale:g}", "--engine", "relay")
    emulate += ("--tcp", "kernel")
    ranks = launch_command(find_mpirun(), num_ranks=len(topo.load(str(_LINKS))))
    probe = ("topo", "probe", "-o", str(found), "--name", "hidden")
    probe += ("--repeats", "3", "--large-mib", "4")
    _jaxpipe(*emulate, "--", *ranks, *_JAXPIPE, *probe)
    _jaxpipe("profile", "--model", "tiny", "--remat", "none", "--out", str(profile))
    settings = (f"paced.profile={profile}", "paced.ideal=true", "plan.stages=2", "plan.replicas=2")
    options = (*(word for each in settings for word in ("--set", each)), "--json")
    known = (str(_MODEL), "--cluster", str(found))
    planned = json.loads(_jaxpipe("plan", *known, *options, "-o", str(plan)))
    changes = {"run.folder": run, "plan.file": plan, "plan.cluster": found}
    sets = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    train = (*_JAXPIPE, "train", str(_MODEL), *sets)
    _jaxpipe(*emulate, "--plan", str(plan), "--", *train)
    traced = json.loads(_jaxpipe("trace", str(run), "--json"))
    steps_s = [each.step_s for each in read_metrics(run / "metrics.jsonl")][_FIRST_STEPS:]
    measured_s, computed_s = median(steps_s), traced["simulated"][0]["seconds"]
    return {
        "scale": scale,
        "planned_s_simulated": f"{planned['seconds']:.3f}",
        "with_measured_computes_s_simulated": f"{computed_s:.3f}",
        "step_s_emulated": f"{measured_s:.3f}",
        "lowest_s": f"{min(steps_s):.3f}",
        "highest_s": f"{max(steps_s):.3f}",
        "planned_over_measured": f"{planned['seconds'] / measured_s:.2f}",
        "with_measured_computes_over_measured": f"{computed_s / measured_s:.2f}",
    }


def _jaxpipe(*arguments: str) -> str:
    """Run a command of jaxpipe; return what it printed on standard output."""
    print(f"$ jaxpipe {shlex.join(arguments)}", file=sys.stderr, flush=True)
    return _run((*_JAXPIPE, *arguments))


def _run(command: Sequence[str]) -> str:
    done = subprocess.run(
        command,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        errors="replace",  # a model of ten steps writes samples that are no text
        check=False,
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} exited with {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
