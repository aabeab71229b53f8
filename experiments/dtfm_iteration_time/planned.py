"""The planner's plans for the same workload on the same clusters, with the same constants.

`python -m experiments.dtfm_iteration_time.planned` writes only this table.

The workload is that of DT-FM: layers without a head, fp16, SGD without state, one sample per
microbatch, full recomputation in the backward.
"""

import time
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from experiments.dtfm_iteration_time.ours import CLUSTERS
from experiments.progress import counted_results
from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.baselines.published.jaxpipe_on_dtfm import jaxpipe_step
from jaxpipe.baselines.published.published_systems import system_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System
from jaxpipe.plan import Plan
from jaxpipe.plan.cost import BytesPerParameter, flop_profile
from jaxpipe.propose.device_speeds import with_speeds
from jaxpipe.propose.query import SIMULATED_CHUNK_BYTES
from jaxpipe.search import Effort, Task, search
from jaxpipe.simulate import (
    Conditions,
    Constants,
    Overheads,
    StepBreakdown,
    dtfm_constants,
    simulate_ends,
    step_breakdown,
    step_objective,
)
from jaxpipe.topo import Cluster

SIZE = Workload(num_layers=24, batch=1024)
NUMBER = ".2f"
"""The format of all numbers of this experiment's tables."""
_SECONDS = 30.0
_RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """Simulated seconds on one cluster: DT-FM, our plan by rule, and the planner's plan."""

    cluster: str
    dtfm_s: float
    by_rule_s: float
    plan: Plan
    split: StepBreakdown


def write_planned(constants: Constants, executor: Executor) -> None:
    """Search a plan for every cluster, and write the table."""
    planned = executor.map(partial(_search, constants=constants), CLUSTERS)
    rows = [_row(each) for each in counted_results(planned, "searches", total=len(CLUSTERS))]
    write_csv(rows, _RESULTS / "planned.csv", number=NUMBER)
    title = "The planner's plans for 24 layers and batch 1024 (simulated)"
    table = markdown(rows, number=NUMBER)
    (_RESULTS / "planned.md").write_text(f"## {title}\n\n{table}\n")
    print(table)


def _row(each: Planned) -> Row:
    plan, split = each.plan, each.split
    return {
        "cluster": each.cluster,
        "dtfm_simulated_s": each.dtfm_s,
        "by_rule_simulated_s": each.by_rule_s,
        "planned_simulated_s": split.step_s,
        "speedup": each.dtfm_s / split.step_s,
        "ranks x replicas": shape_of(plan),
        "schedule": plan.schedule_name,
        "all-reduce": plan.all_reduce.value,
        "warmup": "" if plan.warmup is None else " ".join(map(str, plan.warmup)),
        "compute_s": split.compute_s,
        "bubble_s": split.bubble_s,
        "activations_s": split.activations_s,
        "gradients_s": split.gradients_s,
    }


def shape_of(plan: Plan) -> str:
    """Return the ranks of a pipeline and the replicas; of unlike replicas the ranks of each."""
    num_ranks = [pipeline.num_ranks for pipeline in plan.pipelines]
    unlike = len(set(num_ranks)) > 1
    shape = " + ".join(map(str, num_ranks)) if unlike else f"{num_ranks[0]} x {len(num_ranks)}"
    return shape if plan.num_chunks == 1 else f"{shape} in {plan.num_chunks} chunks"


def _search(name: str, *, constants: Constants) -> Planned:
    cluster = topo.load(name)
    task, conditions = planner_input(cluster, workload=SIZE, constants=constants)
    effort = Effort(seconds=_SECONDS, num_changes=10**6)
    plan = search(
        task,
        step_objective(conditions),
        effort=effort,
        clock=time.process_time,  # other load on the machine does not change the result
    ).plan
    dtfm_s, by_rule_s = (
        simulate_ends(job).seconds
        for job in (
            system_step(System.DTFM, cluster, workload=SIZE, constants=constants),
            jaxpipe_step(cluster, workload=SIZE, constants=constants),
        )
    )
    return Planned(
        cluster=name,
        dtfm_s=dtfm_s,
        by_rule_s=by_rule_s,
        plan=plan,
        split=step_breakdown(plan, conditions),
    )


def planner_input(
    cluster: Cluster, *, workload: Workload, constants: Constants
) -> tuple[Task, Conditions]:
    """Return the planner's task, and the conditions in which its plans are simulated."""
    speeds, network = constants.speeds(workload.precision), constants.on(cluster).network
    known = with_speeds(
        cluster, workload.precision, fraction=speeds.remote_fraction, unknown_flops_per_s=None
    )
    profile = flop_profile(
        num_layers=workload.num_layers,
        layer_flop=workload.layer_forward_flop,
        layer_parameters=workload.gradient_bytes(1, is_first=False) // workload.bytes_per_value,
        layer_kept_bytes=workload.activation_bytes,
        activation_bytes=workload.activation_bytes,
        embed_parameters=workload.gradient_bytes(0, is_first=True) // workload.bytes_per_value,
        recomputes=True,
        flops_per_s=max(device.flops_per_s(workload.precision) for device in known.devices),
    )
    each = workload.bytes_per_value
    task = Task(
        cluster=known,
        profile=profile,
        batch=workload.batch,
        bytes_each=BytesPerParameter(parameter=each, gradient=each, optimizer=0),
        chunk_bytes=SIMULATED_CHUNK_BYTES,
    )
    overheads = Overheads(
        messages=network.messages(),
        gradients=network.gradients(),
        nic_efficiency=network.nic_efficiency,
        chunk_bytes=SIMULATED_CHUNK_BYTES,
        local_factor=speeds.remote_fraction / speeds.local_fraction,
    )
    return task, Conditions(
        cluster=known, profile=profile, slow=task.slow, gradient_bytes=each, overheads=overheads
    )


if __name__ == "__main__":
    with ProcessPoolExecutor() as processes:
        write_planned(dtfm_constants(), processes)
