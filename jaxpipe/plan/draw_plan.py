"""Draw a plan as text, to read before a run and to compare with it afterwards."""

from collections.abc import Iterator
from itertools import pairwise

from jaxpipe.collective import SyncTree
from jaxpipe.collective.sync_tree import folded
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import peak_live, render, timetable
from jaxpipe.topo import Cluster
from jaxpipe.topo.units import gbps_from_bytes_per_s, ms_from_seconds


def draw_plan(plan: Plan, cluster: Cluster, *, num_columns: int = 100) -> str:
    """Return the drawing: placement, partition, links, sync tree and schedule."""
    return "\n".join(
        (
            f"{plan.num_ranks} ranks, {plan.num_stages} stages x {plan.num_replicas} replicas, on "
            f"cluster {cluster.name}{_chunks(plan)}",
            "",
            *_placement(plan, cluster),
            "",
            *_links(plan, cluster),
            _gradients(plan),
            "",
            f"schedule {plan.schedule_name}, {plan.num_microbatches} microbatches: theoretical "
            f"bubble {ideal_bubble(plan):.1%} (backward = 2 forwards, equal layers, no network), "
            f"at most {', '.join(map(str, peak_live(plan.compute_schedule())))} microbatches live",
            "",
            render(plan.compute_schedule(), num_columns=num_columns),
        )
    )


def draw_tree(tree: SyncTree) -> str:
    """Return a sync tree as text, its islands in parentheses.

    >>> draw_tree(((0, 2), 5))
    '((0 2) 5)'
    """
    return folded(tree, at_rank=str, at_island=lambda members: f"({' '.join(members)})")


def ideal_bubble(plan: Plan) -> float:
    """Return the bubble for equal layers, backwards of two forwards, and instant messages."""
    # A second per layer: a bubble depends on ratios alone.
    forward_s = tuple(map(float, plan.cut))
    backward_s = tuple(2 * seconds for seconds in forward_s)
    times = timetable(plan.compute_schedule(), forward_s=forward_s, backward_s=backward_s)
    return times.bubble_fraction


def _gradients(plan: Plan) -> str:
    if plan.num_replicas == 1:
        return "all-reduce of gradients: none, for there is one replica"
    tree = draw_tree(plan.sync[0])
    return f"all-reduce of gradients: {plan.all_reduce}, for stage 0 over ranks {tree}"


def _chunks(plan: Plan) -> str:
    return f", {plan.num_chunks} chunks per rank" if plan.num_chunks > 1 else ""


def _placement(plan: Plan, cluster: Cluster) -> Iterator[str]:
    cells = [
        [
            f"rank {plan.rank(replica=r, stage=s)} on {cluster.devices[device].name}"
            for s, device in enumerate(row)
        ]
        for r, row in enumerate(plan.placement)
    ]
    size = plan.num_pipeline_ranks
    heads = [f"stage {s}: {_layers(plan, s)}" for s in range(plan.num_stages)]
    width = max(len(cell) for row in (*cells, heads) for cell in row) + 3
    for first in range(0, plan.num_stages, size):
        chunk = heads[first : first + size]
        yield (" " * 11 + "".join(head.ljust(width) for head in chunk)).rstrip()
    for replica, row in enumerate(cells):
        yield (f"replica {replica}".ljust(11) + "".join(c.ljust(width) for c in row)).rstrip()


def _layers(plan: Plan, stage: int) -> str:
    layers = plan.layers(stage)
    one = len(layers) == 1
    return f"layer {layers.start}" if one else f"layers {layers.start}-{layers.stop - 1}"


def _links(plan: Plan, cluster: Cluster) -> Iterator[str]:
    # With chunks, the last rank sends back to the first one.
    rounds = [row if plan.num_chunks == 1 else (*row, row[0]) for row in plan.placement]
    hops = [hop for row in rounds for hop in pairwise(row) if hop[0] != hop[1]]
    if hops:
        yield f"activations cross {_slowest(hops, cluster)}"
    if plan.num_replicas > 1:
        columns = list(zip(*plan.placement, strict=True))
        # All pairs: which of them exchange gradients depends on the all-reduce.
        pairs = [(a, b) for column in columns for a in column for b in column if a != b]
        yield f"gradients cross {_slowest(pairs, cluster)}"


def _slowest(pairs: list[tuple[int, int]], cluster: Cluster) -> str:
    links = [cluster.link(source, destination) for source, destination in pairs]
    latency_ms = ms_from_seconds(max(link.latency_s for link in links))
    gbps = gbps_from_bytes_per_s(min(link.bandwidth_bytes_per_s for link in links))
    return f"links of up to {latency_ms:g} ms and down to {gbps:g} Gbps"
