"""Train with equal and unequal plans on throttled ranks, and predict each from one profile.

    python -m experiments.unlike_replicas.run

All ranks are processes of this machine. The profile is measured on a whole core, next to another
that computes the same; a rank with half a core is predicted to take twice as long.
"""

import os
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from statistics import mean, median
from typing import Any

import msgspec
import numpy as np

from experiments.emulation.commands import run, train
from experiments.table import Row, markdown, percent, write_csv
from experiments.unlike_replicas.throttle import SHARES_FILE, Share, groups, join
from jaxpipe.config import Config, config_from
from jaxpipe.plan.cost import Profile, read_profile
from jaxpipe.profile.gpt_parts import measure_gpt, write_costs
from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.data import Source, prepare
from jaxpipe.runtime.metrics.records import read_metrics
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import load
from jaxpipe.topo.toml_text import toml_text

_FOLDER = Path(__file__).parent
_FIRST_STEPS = 2
"""Not counted: threads and connections start in them."""
_ROUNDS = 2
_REPEATS = 60
"""Calls of each part: several seconds, since shared machines are now faster and now slower."""
_GRADIENT_BYTES = 4
_PROFILE_TIMEOUT_S = 300.0


def main() -> None:
    """Measure profiles and all cases in turn, and write `results/measured.csv`."""
    cases = tomllib.loads((_FOLDER / "cases.toml").read_text())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _prepare(folder)
        profiles = [_profile(cases, folder)]
        steps: dict[str, list[list[float]]] = {case["name"]: [] for case in cases["case"]}
        losses: list[str] = []
        for number in range(_ROUNDS):
            for case in cases["case"]:
                print(f"round {number + 1} of {_ROUNDS}: {case['name']} ...", flush=True)
                taken_s, loss = _measured(cases, case, folder / f"round-{number}")
                steps[case["name"]].append(taken_s)
                losses.append(loss)
            profiles.append(_profile(cases, folder))
        if len(set(losses)) > 1:
            raise RuntimeError(f"the cases differ in their plans alone, but their losses: {losses}")
        rows = [
            {
                **_row(cases, case, steps[case["name"]], profiles, folder),
                "last_loss": losses[0],
            }
            for case in cases["case"]
        ]
    results = _FOLDER / "results"
    results.mkdir(exist_ok=True)
    write_csv(rows, results / "measured.csv")
    print(markdown(rows))


def _row(
    cases: Mapping[str, Any],
    case: Mapping[str, Any],
    steps: list[list[float]],
    profiles: list[Profile],
    folder: Path,
) -> Row:
    """Return a row of the table; `steps` are the seconds of each round's steps."""
    config = config_from(_tree(cases, case, folder))
    measured_s = median(chain(*steps))
    predicted_s = mean(_predicted_s(config, each, cases["cores"]) for each in profiles)
    of_rounds = [median(each) for each in steps]
    return {
        "case": case["name"],
        "layers": " + ".join("-".join(map(str, cut)) for cut in case["cuts"]),
        "samples": " + ".join(map(str, case["shares"])),
        "measured_s": measured_s,
        "fastest_round_s": min(of_rounds),
        "slowest_round_s": max(of_rounds),
        "predicted_s": predicted_s,
        "error": percent(predicted_s / measured_s - 1),
    }


def _measured(
    cases: Mapping[str, Any], case: Mapping[str, Any], folder: Path
) -> tuple[list[float], str]:
    """Train, and return the seconds of the steps that count, and the last loss."""
    own = folder / case["name"].replace(" ", "-")
    own.mkdir(parents=True)
    tree = _tree(cases, case, folder.parent)
    tree["run"]["folder"] = str(own / "run")
    (own / "run.toml").write_text(toml_text(tree))
    shares = _shares(cases, case["devices"])
    (own / SHARES_FILE).write_bytes(msgspec.json.encode(shares))
    with groups(shares):
        run(train([str(own / "run.toml"), "--hooks", "experiments.unlike_replicas.throttle:hooks"]))
    steps = read_metrics(own / "run" / "metrics.jsonl")[_FIRST_STEPS:]
    return [each.step_s for each in steps], f"{steps[-1].loss:.6f}"


def _predicted_s(config: Config, profile: Profile, cores: list[float]) -> float:
    cluster = load(config.plan.cluster)
    slow = np.ones(len(cluster))
    slow[: len(cores)] = 1 / np.array(cores)
    conditions = Conditions(
        cluster=cluster, profile=profile, slow=slow, gradient_bytes=_GRADIENT_BYTES
    )
    return plan_step_s(plan_from(config, cluster), conditions)


def _tree(cases: Mapping[str, Any], case: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    devices = load(cases["cluster"]).devices
    return {
        "run": {
            "folder": str(folder / "run"),
            "seed": cases["seed"],
            "timeout_s": 120.0,
            "startup_timeout_s": 600.0,
        },
        "data": {"folder": str(folder / "dataset")},
        "model": cases["model"],
        "plan": {
            "cluster": cases["cluster"],
            "devices": [devices[number].name for number in case["devices"]],
            "cuts": case["cuts"],
            "shares": case["shares"],
            "microbatch": 1,
            "schedule": "1f1b",
        },
        "train": cases["train"],
    }


def _shares(cases: Mapping[str, Any], ranks: list[int]) -> tuple[Share, ...]:
    return tuple(
        Share(
            group=f"jaxpipe-{os.getpid()}-{number}",
            cores=cases["cores"][number],
            core=cases["core_of"][number],
        )
        for number in ranks
    )


def _prepare(folder: Path) -> None:
    text = folder / "text.txt"
    text.write_text("".join(f"{i} plus {i} is {2 * i}; " for i in range(4000)))
    prepare(Source(path=text), folder / "dataset")


def _profile(cases: Mapping[str, Any], folder: Path) -> Profile:
    """Return the profile of the model on a whole core while the other core computes the same.

    Cores share the memory, and in a run both compute.
    """
    path = folder / "profile.json"
    config = folder / "profile.toml"
    config.write_text(toml_text(_tree(cases, cases["case"][0], folder)))
    shares = [Share(group=f"jaxpipe-{os.getpid()}-{core}", cores=1.0, core=core) for core in (0, 1)]
    code = "import sys; from experiments.unlike_replicas.run import measure; measure(*sys.argv[1:])"
    with groups(tuple(shares)):
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, str(config), out, share.group, str(share.core)],
                env=os.environ | {"JAX_PLATFORMS": "cpu"},
            )
            for share, out in zip(shares, (str(path), str(folder / "other.json")), strict=True)
        ]
        codes = [process.wait(timeout=_PROFILE_TIMEOUT_S) for process in processes]
    if any(codes):
        raise RuntimeError(f"a profile exited with {max(codes)}; see its output above")
    return read_profile(path)


def measure(config: str, out: str, group: str, core: str) -> None:
    """Measure the model of a configuration on a core, and write the profile."""
    join(Share(group=group, cores=1.0, core=int(core)))
    tree = tomllib.loads(Path(config).read_text())
    model = config_from(tree).model
    costs = measure_gpt(
        model, settings=MeasureConfig(repeats=_REPEATS), clock=time.perf_counter, observe=_ignore
    )
    write_costs(costs, Path(out))


def _ignore(_: str) -> None:
    """Print nothing of a part that is measured."""


if __name__ == "__main__":
    main()
