"""`python -m experiments.planner.fleet`: 10,000 devices in 20 regions, results/fleet.csv.

Every plan is valued by one closed form (`jaxpipe.search.fleet`), shares of the batch included::

    region by region    replicas, or stages, filled with one region after the other: the best number
                        of stages and size of microbatches
    random              devices in a random order, random stages and microbatches that fit
    equal choices       the best plan of the search's first step: blocks of equal devices by region
    search              all of it

`python -m experiments.planner.fleet check` compares the closed form with simulations of small
fleets: results/fleet_check.csv.
"""

import resource
import sys
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from math import inf
from pathlib import Path
from typing import Any

import numpy as np

from experiments.planner.fleet_cluster import fleet_toml
from experiments.table import Row, markdown, write_csv
from jaxpipe.config import cluster_from, config_of_settings
from jaxpipe.propose.fleet_proposal import fleet_costs
from jaxpipe.propose.query import Query
from jaxpipe.schedule import Remat, deepest_first
from jaxpipe.search import balanced_cut
from jaxpipe.search.fleet import Fits, FleetCosts, Team, search_fleet
from jaxpipe.simulate import Conditions, plan_step_s

_HERE = Path(__file__).parent
_STAGES = (4, 6, 8, 10, 12, 16, 20, 24, 32)
_MICROBATCHES = (1, 2, 4, 8)
_NUMBER = ".4g"


def conditions_of(
    setup: Mapping[str, Any], *, devices: int, batch: int
) -> tuple[FleetCosts, Conditions]:
    """Return the closed form and the conditions of a simulation for this many devices."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fleet.toml"
        file.write_text(fleet_toml(setup, devices=devices))
        config = config_of_settings(
            [f"model.preset={setup['model']}", f"plan.cluster={file}", f"train.batch={batch}"]
        )
        task, conditions = Query(config=config, cluster=cluster_from(config)).task(Remat.FULL)
    return fleet_costs(task, conditions), conditions


def step_s(costs: FleetCosts, rows: np.ndarray, *, microbatch: int, fits: Fits) -> float:
    """Return the seconds of a step of one team; infinite if it does not fit."""
    team = Team(devices=rows, cut=balanced_cut(costs.task.profile, costs.task.slow[rows].max(0)))
    for schedule in deepest_first(rows.shape[1]):
        if fits([team], microbatch=microbatch, schedule=schedule):
            return costs.step([team], microbatch=microbatch, schedule=schedule).step_s
    return inf


def by_region(costs: FleetCosts) -> float:
    """Return the least step of plans that fill replicas, or stages, region by region."""
    devices, fits = costs.task.cluster.devices, Fits(costs.task)
    order = np.array(sorted(range(len(devices)), key=lambda n: (devices[n].region, n)))
    return min(
        step_s(costs, rows, microbatch=size, fits=fits)
        for stages in _STAGES
        for size in _MICROBATCHES
        for rows in _filled(order, stages)
    )


def _filled(order: np.ndarray, stages: int) -> Iterator[np.ndarray]:
    whole = order[: len(order) // stages * stages]
    if len(whole):
        yield whole.reshape(-1, stages)
        yield whole.reshape(stages, -1).T


def best_random(costs: FleetCosts, *, count: int, seed: int) -> float:
    """Return the least step of random plans that fit."""
    random, fits = np.random.default_rng(seed), Fits(costs.task)
    found: list[float] = []
    while len(found) < count:
        stages, size = int(random.choice(_STAGES)), int(random.choice(_MICROBATCHES))
        order = random.permutation(len(costs.task.cluster))
        rows = order[: len(order) // stages * stages].reshape(-1, stages)
        if (seconds := step_s(costs, rows, microbatch=size, fits=fits)) < inf:
            found.append(seconds)
    return min(found)


def grown(setup: Mapping[str, Any], size: Mapping[str, Any]) -> Row:
    """Return the row of a size."""
    # Processor time: the machine may be shared.
    began_s = time.process_time()
    costs, _ = conditions_of(setup, devices=size["devices"], batch=size["batch"])
    loaded_s = time.process_time() - began_s
    found = search_fleet(costs, limit_s=setup["seconds"], clock=time.process_time)
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    row: Row = {
        "devices": len(costs.task.cluster),
        "batch": size["batch"],
        "search [s]": found.step.step_s,
        "devices used": found.plan.num_ranks,
        "replicas": found.plan.num_replicas,
        "equal choices [s]": found.coarse_s,
        "region by region [s]": by_region(costs),
        "best of 1,000 random [s]": best_random(
            costs, count=setup["num_random"], seed=setup["seed"]
        ),
        "load the cluster, CPU [s]": loaded_s,
        "search, CPU [s]": found.seconds,
        "plans valued": found.num_valued,
        "memory, peak so far [GB]": memory_gb,
    }
    print(markdown([row], number=_NUMBER), flush=True)
    return row


def checked(setup: Mapping[str, Any], size: Mapping[str, Any]) -> Row:
    """Return the closed form of a small fleet's plan and its simulated step."""
    costs, conditions = conditions_of(setup, devices=size["devices"], batch=size["batch"])
    found = search_fleet(costs, limit_s=size["seconds"], clock=time.process_time)
    simulated_s = plan_step_s(found.plan, conditions)
    row: Row = {
        "devices": len(costs.task.cluster),
        "devices used": found.plan.num_ranks,
        "batch": size["batch"],
        "closed form [s]": found.step.step_s,
        "simulated [s]": simulated_s,
        "closed form / simulated": found.step.step_s / simulated_s,
    }
    print(markdown([row], number=_NUMBER), flush=True)
    return row


def main(arguments: list[str]) -> None:
    """Compute and write a table: `fleet` by default, `fleet_check` with `check`."""
    setup = tomllib.loads((_HERE / "cases.toml").read_text())["fleet"]
    is_check = arguments == ["check"]
    name, of_size = ("fleet_check", checked) if is_check else ("fleet", grown)
    rows = [of_size(setup, size) for size in setup["checks" if is_check else "sizes"]]
    write_csv(rows, _HERE / "results" / f"{name}.csv", number=_NUMBER)
    (_HERE / "results" / f"{name}.md").write_text(markdown(rows, number=_NUMBER) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
