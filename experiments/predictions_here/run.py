"""Predict and measure steps of two ranks: `python -m experiments.predictions_here.run`.

In each round of a case the model is profiled, a run measured, and the step of its plan simulated;
the medians over rounds and steps count. Writes `results/steps.csv`, in which a case that is
repeated replaces its row.
"""

import os
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import tyro

from experiments.case_tree import Tree, case_tree
from experiments.progress import counted
from experiments.table import Row, markdown, update_csv
from jaxpipe.config import config_from
from jaxpipe.plan.cost import Profile, write_profile
from jaxpipe.profile.kept_profile import measured_profile
from jaxpipe.propose.machine_costs import profile_task
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.simulate.plan_step import end_s
from jaxpipe.topo.toml_text import toml_text

_HERE = Path(__file__).parent
_FIRST_STEPS = 6
"""Not counted: connections open, caches fill."""
_TIMEOUT_S = 900.0


def main(*, rounds: int = 2, only: str = "") -> None:
    """Run all cases, or those whose name has the text `only`, and print the table."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(Source(), folder / "data")
        chosen = [case for case in cases["case"] if only in case["name"]]
        for case in counted(chosen, "cases"):
            rows.append(_row(case, cases["base"], folder, rounds=rounds))
            print(rows[-1], flush=True)
    order = [case["name"] for case in cases["case"]]
    rows = update_csv(rows, _HERE / "results" / "steps.csv", key="case", order=order)
    print(markdown(rows))
    for tuned in ("yes", "no"):
        errors = [abs(float(row["ratio"]) - 1) for row in rows if row["tuned"] == tuned]
        if errors:
            print(f"tuned: {tuned}; error {median(errors):.1%}, worst {max(errors):.1%}")


def _row(case: Mapping[str, Any], base: Mapping[str, Any], folder: Path, *, rounds: int) -> Row:
    predicted_s: list[float] = []
    measured_s: list[float] = []
    for number in range(rounds):
        run = Path(tempfile.mkdtemp(dir=folder)) / f"run-{number}"
        tree = case_tree(case, base, run=run, data=folder / "data")
        config = config_from(tree)
        task = profile_task(config, microbatches=(config.plan.microbatch or 1,))
        profile = measured_profile(task, keep=False).value
        measured_s += _measured_s(tree, folder)
        predicted_s.append(_predicted_s(tree, profile, folder))
    ordered = sorted(measured_s)
    tenth = len(ordered) // 10
    return {
        "case": case["name"],
        "tuned": "yes" if case.get("tuned") else "no",
        "predicted ms": 1e3 * median(predicted_s),
        "measured ms": 1e3 * median(measured_s),
        "p10 ms": 1e3 * ordered[tenth],
        "p90 ms": 1e3 * ordered[-1 - tenth],
        "ratio": median(predicted_s) / median(measured_s),
        "load": os.getloadavg()[0],
    }


def _predicted_s(tree: Tree, profile: Profile, folder: Path) -> float:
    path = folder / "profile.json"
    write_profile(profile, path)
    # The plan that ran: a search with another profile may choose another one.
    ran = {"cluster": tree["plan"]["cluster"], "file": f"{tree['run']['folder']}/plan.toml"}
    # Ideal: overheads that were fitted to other systems' links do not count inside a host.
    return end_s(
        simulate_step(
            config_from({**tree, "plan": ran, "paced": {"profile": str(path), "ideal": True}})
        )
    )


def _measured_s(tree: Tree, folder: Path) -> list[float]:
    """Return the seconds of the steps of a run, without the first ones."""
    file = folder / "config.toml"
    file.write_text(toml_text(tree))
    command = (sys.executable, "-P", "-m", "jaxpipe", "train", str(file))
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    metrics = read_metrics(Path(tree["run"]["folder"]) / "metrics.jsonl")
    return [step.step_s for step in metrics[_FIRST_STEPS:]]


if __name__ == "__main__":
    tyro.cli(main)
