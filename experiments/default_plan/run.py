"""Execute the searched plan and 1F1B over an even cut: `python -m experiments.default_plan.run`.

On each cluster of `cases.toml` both plans run in turn, paced: real ranks and messages over shaped
links, computes that wait as long as the devices of the cluster would compute. Writes
`results/steps.csv`, in which rows of repeated cases are replaced.
"""

import json
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
from jaxpipe.config import Config, cluster_from, config_from
from jaxpipe.propose.resolve import resolve
from jaxpipe.run.forecast.simulate_step import simulate_step
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.simulate.plan_step import end_s
from jaxpipe.topo.toml_text import toml_text

_HERE = Path(__file__).parent
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
    print(markdown(update_csv(rows, _HERE / "results" / "steps.csv", key="case", order=order)))


def _row(
    case: Mapping[str, Any], base: Mapping[str, Any], folder: Path, *, rounds: int
) -> dict[str, str | float]:
    searched = case_tree(case, base, run=folder / "run", data=folder / "data")
    default = {**searched, "plan": {**searched["plan"], **_default(config_from(searched))}}
    trees = {"default": default, "searched": searched}
    simulated_s = {name: end_s(simulate_step(config_from(tree))) for name, tree in trees.items()}
    measured_s: dict[str, list[float]] = {name: [] for name in trees}
    for _ in range(rounds):
        for name, tree in trees.items():
            measured_s[name] += _measured_s(tree, Path(tempfile.mkdtemp(dir=folder)))
    medians = {name: median(seconds) for name, seconds in measured_s.items()}
    plan = resolve(config_from(searched)).plan
    return {
        "case": case["name"],
        "default": f"{default['plan']['stages']} x {default['plan']['replicas']}",
        "searched": f"{plan.shape}, {plan.schedule_name}",
        "default_s": medians["default"],
        "searched_s": medians["searched"],
        "gain": medians["default"] / medians["searched"],
        "simulated_default_s": simulated_s["default"],
        "simulated_searched_s": simulated_s["searched"],
    }


def _default(config: Config) -> dict[str, Any]:
    """Return what `[plan]` meant when nothing was searched, for all devices of the cluster."""
    stages, replicas = 2, len(cluster_from(config)) // 2
    layers = config.model.num_layers
    return {
        "stages": stages,
        "replicas": replicas,
        "cut": [layers - layers // stages, layers // stages],
        "microbatch": 1,
        "schedule": "1f1b",
    }


def _measured_s(tree: Tree, folder: Path) -> list[float]:
    """Return the emulated seconds of the steps of a run, without the first one."""
    file = folder / "config.toml"
    file.write_text(toml_text({**tree, "run": {**tree["run"], "folder": str(folder / "run")}}))
    command = (sys.executable, "-P", "-m", "jaxpipe", "train", str(file))
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [record for record in map(json.loads, lines) if "step" in record]
    return [record["step_s"] for record in steps[1:]]


if __name__ == "__main__":
    tyro.cli(main)
