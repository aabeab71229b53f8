"""Our plans: the planner's plan of each case as a file, and the same without a scheduler."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from experiments.compare_group.cases import Case, Cases, cluster_of
from experiments.dtfm_iteration_time.planned import planner_input
from jaxpipe.baselines.published.dtfm_launch_order import launch_order, shuffled
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.plan import Plan, read_plan, write_plan
from jaxpipe.search import Effort, search
from jaxpipe.simulate import Conditions, Constants, plan_step_s, step_objective
from jaxpipe.topo import Cluster

_CHUNK_BYTES = 32 * 2**20


def conditions_of(cluster: Cluster, workload: Workload, constants: Constants) -> Conditions:
    """Return the conditions of our plans: the profile by FLOPs and the fitted constants.

    Gradient chunks are larger than those of the planner. That is a fifth of the messages, so that
    two cores keep up with 64 ranks, and makes steps longer: by up to 1.5 % where links are not
    shared, by 10 % on FluidStack with two regions.
    """
    conditions = planner_input(cluster, workload=workload, constants=constants)[1]
    return replace(conditions, overheads=replace(conditions.overheads, chunk_bytes=_CHUNK_BYTES))


def find(case: Case, cases: Cases, constants: Constants, *, folder: Path, cpu_s: float) -> float:
    """Search a plan for a case, write it to a file, and return its simulated seconds."""
    cluster = cluster_of(case, batch=cases.batch)
    task, conditions = planner_input(cluster, workload=cases.workload, constants=constants)
    effort = Effort(seconds=cpu_s, num_changes=10**6)
    # Processor time, so that other load on the machine does not change the result.
    found = search(task, step_objective(conditions), effort=effort, clock=time.process_time)
    seconds = plan_step_s(found.plan, conditions)
    about = f"Found for {case.name}, {cases.layers} layers, batch {cases.batch}: {seconds:.2f} s a "
    folder.mkdir(parents=True, exist_ok=True)
    write_plan(found.plan, cluster, _file(case, folder), about=about + "step, simulated.")
    return seconds


def read_found(case: Case, cluster: Cluster, folder: Path) -> Plan:
    """Read the stored plan of a case.

    Raises:
        PlanError: it is missing, or is for another cluster.
    """
    return read_plan(_file(case, folder), cluster)


def unscheduled_plan(plan: Plan, cluster: Cluster, *, seed: int) -> Plan:
    """Return the plan with DT-FM's random placement and all-reduces in rank order.

    Stages, schedule, warm-up and the kind of all-reduce stay; nothing follows the network.
    """
    return placed(plan, shuffled(launch_order(cluster), seed=seed)[: plan.num_ranks])


def placed(plan: Plan, devices: Sequence[int]) -> Plan:
    """Return the plan with a device per rank, and all-reduces in rank order."""
    size = plan.num_pipeline_ranks
    everyone = range(plan.num_ranks)
    rows = (tuple(devices[first : first + size]) for first in everyone[::size])
    return replace(
        plan.on_devices(rows),
        sync=tuple(
            tuple(plan.rank(replica=replica, stage=stage) for replica in range(plan.num_replicas))
            for stage in range(plan.num_stages)
        ),
        sync_shared=tuple(rank for rank in everyone if rank % size in (0, size - 1)),
        sync_all=tuple(everyone),
    )


def _file(case: Case, folder: Path) -> Path:
    return folder / f"{case.name.replace(' ', '-')}.toml"
