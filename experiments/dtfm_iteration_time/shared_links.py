"""How a plan reacts to links that regions share.

`python -m experiments.dtfm_iteration_time.shared_links [CLUSTER]`. The planner's plans for DT-FM's
networks were searched for links that share nothing. Here the links from each region to another
share what some pairs of devices have alone: one pair, two, four ...
Writes `results/shared_links.csv` and `.md`.
"""

import time
from dataclasses import replace
from pathlib import Path

import tyro

from experiments.dtfm_iteration_time.planned import NUMBER, SIZE, planner_input
from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.baselines.published.published_systems import system_step
from jaxpipe.baselines.systems import System
from jaxpipe.search import Effort, search
from jaxpipe.simulate import dtfm_constants, plan_step_s, simulate_ends, step_objective
from jaxpipe.topo import Cluster, with_trunks_of_one_pair

_RESULTS = Path(__file__).parent / "results"
_NUM_PAIRS = (1, 2, 4, 8, 16, 64)


def main(cluster: tyro.conf.Positional[str] = "case5-worldwide", *, cpu_s: float = 30.0) -> None:
    """Search a plan for unshared links, and simulate it and DT-FM over trunks."""
    unshared, constants = topo.load(cluster), dtfm_constants()
    task, conditions = planner_input(unshared, workload=SIZE, constants=constants)
    effort = Effort(seconds=cpu_s, num_changes=10**6)
    # Processor time, so that other load on the machine does not change the result.
    objective = step_objective(conditions)
    plan = search(task, objective, effort=effort, clock=time.process_time).plan
    rows: list[Row] = []
    for words, network in counted(tuple(_networks(unshared).items()), "networks"):
        theirs = system_step(System.DTFM, network, workload=SIZE, constants=constants)
        ours_s = plan_step_s(plan, planner_input(network, workload=SIZE, constants=constants)[1])
        theirs_s = simulate_ends(theirs).seconds
        rows.append(
            {
                "links from a region to another": words,
                f"{plan.num_stages} x {plan.num_replicas}, {plan.all_reduce.value}": ours_s,
                "DT-FM": theirs_s,
                "gain": theirs_s / ours_s,
            }
        )
    write_csv(rows, _RESULTS / "shared_links.csv", number=NUMBER)
    table = markdown(rows, number=NUMBER)
    (_RESULTS / "shared_links.md").write_text(f"{table}\n")
    print(table)


def _networks(unshared: Cluster) -> dict[str, Cluster]:
    """Return the networks by what their regions share."""
    one = with_trunks_of_one_pair(unshared)
    shared = {
        f"share {number} pair{'s' if number > 1 else ''}": replace(
            one,
            trunks=tuple(
                replace(trunk, bytes_per_s=number * trunk.bytes_per_s) for trunk in one.trunks
            ),
        )
        for number in _NUM_PAIRS
    }
    return {"share nothing": unshared, **shared}


if __name__ == "__main__":
    tyro.cli(main)
