"""A layout as a plan: named devices for its groups, and shares of the batch that differ by one.

A layout whose replicas do not divide the batch has a last microbatch with fewer samples; a plan
gives some replicas a microbatch more::

    13 microbatches, 4 replicas      4 3 3 3
"""

from collections import defaultdict
from collections.abc import Sequence

from jaxpipe.collective import AllReduceKind
from jaxpipe.errors import PlanError
from jaxpipe.plan.check import check_plan
from jaxpipe.plan.partition import Cut
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.plan.sync import with_island_trees
from jaxpipe.schedule import ScheduleKind
from jaxpipe.search.layout.layout import Group, Layout
from jaxpipe.topo import Cluster


def plan_of_layout(
    layout: Layout,
    cluster: Cluster,
    *,
    num_layers: int,
    batch: int,
    tied: bool = False,
    schedule: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
    types: Sequence[str] | None = None,
) -> Plan:
    """Return the plan of a layout, on devices of its types and regions; of a group on one host.

    `types` are those of the cluster's devices, by default their GPU types.

    The cut of the layout counts the layers of the model, or the embedding and the head as well.

    Raises:
        PlanError: stages have unequal numbers of replicas, the cluster lacks a device, or the
            layers or the batch do not fit.
    """
    rows = _rows(layout, cluster, gpu_types(cluster) if types is None else types)
    counts = _num_microbatches(layout, batch=batch, num_replicas=len(rows))
    cut = _cut_of_model(layout.cut, num_layers=num_layers)
    plan = Plan(
        pipelines=tuple(
            Pipeline(
                devices=tuple(group[0] for group in row),
                peers=tuple(group[1:] for group in row),
                cut=cut,
                num_microbatches=count,
                microbatch=layout.microbatch,
            )
            for row, count in zip(rows, counts, strict=True)
        ),
        schedule=schedule,
        all_reduce=AllReduceKind.TREE,
        tied=tied,
    )
    plan = with_island_trees(plan, cluster.devices)
    check_plan(plan, num_devices=len(cluster))
    return plan


def gpu_types(cluster: Cluster) -> list[str]:
    """Return the GPU type of each device, "" if it has none."""
    return ["" if device.gpu is None else device.gpu.name for device in cluster.devices]


def _rows(
    layout: Layout, cluster: Cluster, types: Sequence[str]
) -> list[tuple[tuple[int, ...], ...]]:
    """Return the devices of each replica: the next of its type in its region, of one host."""
    columns = [[group for group, count in stage for _ in range(count)] for stage in layout.stages]
    if len({len(column) for column in columns}) > 1:
        raise PlanError(
            "a plan's replicas have all stages: `stages` of the layout have "
            f"{[len(column) for column in columns]} replicas; make them equal"
        )
    free: defaultdict[tuple[str, str], dict[str, list[int]]] = defaultdict(dict)
    for number, device in enumerate(cluster.devices):
        free[types[number], device.region].setdefault(device.host, []).append(number)

    def take(group: Group) -> tuple[int, ...]:
        for left in free[group.gpu, group.zone].values():
            if len(left) >= group.tensor:
                taken = tuple(left[: group.tensor])
                del left[: group.tensor]
                return taken
        raise PlanError(
            f"each group of the layout has its devices on one host: cluster {cluster.name!r} has "
            f"too few with `gpu` {group.gpu!r} in region {group.zone!r} for groups of "
            f"{group.tensor}; use fewer replicas there"
        )

    # Replica by replica: devices of one host are neighbours in the cluster.
    return [tuple(take(group) for group in row) for row in zip(*columns, strict=True)]


def _num_microbatches(layout: Layout, *, batch: int, num_replicas: int) -> list[int]:
    total, rest = divmod(batch, layout.microbatch)
    if rest or total < num_replicas:
        raise PlanError(
            f"each replica has a whole microbatch: `batch` is {batch} for {num_replicas} replicas "
            f"and a `microbatch` of {layout.microbatch}; use a multiple of it, large enough for all"
        )
    each, spare = divmod(total, num_replicas)
    return [each + (replica < spare) for replica in range(num_replicas)]


def _cut_of_model(cut: Cut, *, num_layers: int) -> Cut:
    """Return the layers of the model in each stage, without the embedding and the head."""
    layers = list(cut)
    if sum(cut) == num_layers + 2:
        layers[0] -= 1
        layers[-1] -= 1
    if sum(layers) != num_layers or min(layers) < 1:
        raise PlanError(
            f"each stage has layers of the model: `cut` is {cut}, for {num_layers} layers, or "
            f"{num_layers + 2} with the embedding and the head; give each stage one at least"
        )
    return tuple(layers)
