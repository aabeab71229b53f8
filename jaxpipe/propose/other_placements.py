"""A plan on other devices: what the placement that was found is compared with."""

import numpy as np

from jaxpipe.plan import Plan
from jaxpipe.search import Task, with_suited_trees
from jaxpipe.search.dtfm import dtfm_cost
from jaxpipe.search.shapes import has_one_order
from jaxpipe.simulate import Conditions
from jaxpipe.simulate.outer_step import mean_step_s
from jaxpipe.topo import Cluster

NUM_RANDOM = 5
"""Random placements."""


def elsewhere_s(
    task: Task, plan: Plan, conditions: Conditions, *, seed: int
) -> tuple[float, tuple[float, ...]]:
    """Return the seconds of the plan on devices in their order, and at random.

    These placements share plan, schedule and partition: they differ in devices alone.
    """
    random = np.random.default_rng(seed)

    def seconds(devices: np.ndarray) -> float:
        return mean_step_s(_placed(task, plan, devices), conditions)

    identity_s = seconds(np.arange(len(task.cluster)))
    return identity_s, tuple(
        seconds(random.permutation(len(task.cluster))) for _ in range(NUM_RANDOM)
    )


def dtfm_cost_s(plan: Plan, cluster: Cluster) -> float | None:
    """Return the seconds of DT-FM's published cost of a placement; None if replicas are unlike."""
    if not plan.is_even or (plan.num_chunks > 1 and not has_one_order(plan)):
        return None  # DT-FM's model has equal groups, and ranks of one stage
    # DT-FM's groups are stages: the transposed placement.
    groups = np.array(plan.placement).T.tolist()
    return dtfm_cost(cluster.latency_s, cluster.bandwidth_bytes_per_s, groups).total


def _placed(task: Task, plan: Plan, devices: np.ndarray) -> Plan:
    """Return the plan on other devices, with sync trees for them; of groups, in another order."""
    order = [int(device) for device in devices]
    # A group stays together: it is on one host.
    groups = [plan.group(rank) for rank in order if rank < plan.num_ranks]
    left = iter(groups if plan.has_groups else [(device,) for device in order])
    rows = [[next(left) for _ in row] for row in plan.placement]
    return with_suited_trees(task, plan.on_groups(rows))
