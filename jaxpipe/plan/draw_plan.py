"""Draw a plan as text, to read before a run and to compare with it afterwards."""

from collections.abc import Iterator
from itertools import pairwise

from jaxpipe.collective import CodecKind, SyncTree
from jaxpipe.collective.sync_tree import folded
from jaxpipe.plan.cost.layer_profile import Profile
from jaxpipe.plan.group import Sharing
from jaxpipe.plan.partition import Cut, layers_of
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.plan import Plan
from jaxpipe.schedule import peak_live, render, timetable
from jaxpipe.topo import Cluster
from jaxpipe.topo.units import gbps_from_bytes_per_s, ms_from_seconds


def draw_plan(
    plan: Plan,
    cluster: Cluster,
    *,
    profile: Profile | None = None,
    has_bubble: bool = True,
    num_columns: int = 100,
) -> str:
    """Return the drawing: placement, partition, links, sync tree and schedule.

    The theoretical bubble counts what `profile` says of each stage; by default layers alone. Beside
    a simulated step, which has the bubble on the devices of the cluster, it is left out.
    """
    return "\n".join(
        (
            f"{plan.num_ranks} ranks, {plan.shape}, on cluster {cluster.name}{_chunks(plan)}",
            "",
            *_placement(plan, cluster),
            *_sharing(plan),
            "",
            *_links(plan, cluster),
            *_codecs(plan),
            *_gradients(plan),
            "",
            *_schedules(plan, profile, has_bubble=has_bubble, num_columns=num_columns),
        )
    )


def draw_tree(tree: SyncTree) -> str:
    """Return a sync tree as text, its islands in parentheses.

    >>> draw_tree(((0, 2), 5))
    '((0 2) 5)'
    """
    return folded(tree, at_rank=str, at_island=lambda members: f"({' '.join(members)})")


def ideal_bubble(
    plan: Plan, profile: Profile | None = None, *, replica: int | None = None
) -> float:
    """Return the bubble of a plan on equal devices with instant messages.

    Stages take the seconds of `profile`, with the embedding and the head; by default, layers are
    equal, and a backward takes as long as two forwards. The bubble is that of one replica, or of
    all of them together.
    """
    if replica is None and not plan.is_even:
        return _bubble_of_all(plan, profile)
    pipeline = plan.pipelines[replica or 0]
    forward_s, backward_s = _stage_seconds(pipeline, profile)
    schedule = plan.compute_schedule(replica=replica)
    return timetable(schedule, forward_s=forward_s, backward_s=backward_s).bubble_fraction


def _stage_seconds(
    pipeline: Pipeline, profile: Profile | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return the seconds of the forward and of the backward of each stage."""
    if profile is None:
        # A second per layer: a bubble depends on ratios alone.
        forward_s = tuple(map(float, pipeline.cut))
        return forward_s, tuple(2 * seconds for seconds in forward_s)
    parts = [profile.stage(pipeline.cut, stage) for stage in range(pipeline.num_stages)]
    return tuple(part.forward_s for part in parts), tuple(part.backward_s for part in parts)


def _bubble_of_all(plan: Plan, profile: Profile | None) -> float:
    # All replicas have all layers: samples are in the ratio of their computes.
    computes = [float(pipeline.num_samples) for pipeline in plan.pipelines]
    bubbles = [ideal_bubble(plan, profile, replica=n) for n in range(plan.num_replicas)]
    phases = (compute / (1 - bubble) for compute, bubble in zip(computes, bubbles, strict=True))
    return 1 - sum(computes) / sum(phases)


def _schedules(
    plan: Plan, profile: Profile | None, *, has_bubble: bool, num_columns: int
) -> Iterator[str]:
    """Yield the schedule of all replicas, or that of each."""
    assumed = "backward = 2 forwards, equal layers" if profile is None else "stages by cost"
    for replica in (None,) if plan.is_even else range(plan.num_replicas):
        pipeline, schedule = plan.pipelines[replica or 0], plan.compute_schedule(replica=replica)
        of_replica = "" if replica is None else f" of replica {replica}"
        size = "" if replica is None else f" of {pipeline.microbatch}"
        bubble = ""
        if has_bubble:
            fraction = ideal_bubble(plan, profile, replica=replica)
            bubble = f"theoretical bubble {fraction:.1%} ({assumed}, no network), "
        yield (
            f"schedule {plan.schedule_name}{of_replica}, {pipeline.num_microbatches} microbatches"
            f"{size}: {bubble}at most {', '.join(map(str, peak_live(schedule)))} microbatches live"
        )
        yield ""
        yield render(schedule, num_columns=num_columns)
        if replica is not None and replica + 1 < plan.num_replicas:
            yield ""


def _gradients(plan: Plan) -> Iterator[str]:
    tied = draw_tree(plan.sync_shared) if _sums_embedding(plan) else ""
    if plan.num_replicas == 1 and tied:
        yield f"all-reduce of gradients: {plan.all_reduce}, of the tied embedding over ranks {tied}"
        return
    if plan.num_replicas == 1:
        yield "all-reduce of gradients: none, for there is one replica"
    elif plan.has_equal_cuts:
        tree = draw_tree(plan.sync[0])
        is_of_all = plan.num_chunks > 1 and len(set(plan.sync)) == 1
        stage = "each stage" if is_of_all else "stage 0"
        yield f"all-reduce of gradients: {plan.all_reduce}, for {stage} over ranks {tree}"
    else:
        yield f"all-reduce of gradients: {plan.all_reduce}"
        for segment, tree in enumerate(plan.sync):
            layers = _layers(layers_of(plan.segments, segment))
            yield f"  {layers} over ranks {draw_tree(tree)}"
    if tied:
        yield f"  the tied embedding over ranks {tied}"


def _sums_embedding(plan: Plan) -> bool:
    """Return whether a tied embedding and its head are on different ranks, which sum gradients."""
    return plan.tied and any(pipeline.num_ranks > 1 for pipeline in plan.pipelines)


def _chunks(plan: Plan) -> str:
    return f", {plan.num_chunks} chunks per rank" if plan.num_chunks > 1 else ""


def _placement(plan: Plan, cluster: Cluster) -> Iterator[str]:
    # Replicas with the same partition share a heading.
    cells = [
        [f"rank {first + n} on {_names(group, cluster)}" for n, group in enumerate(row.groups)]
        for first, row in zip(plan.first_ranks, plan.pipelines, strict=True)
    ]
    heads = {
        pipeline.cut: [
            f"stage {s}: {_layers(pipeline.layers(s))}" for s in range(pipeline.num_stages)
        ]
        for pipeline in plan.pipelines
    }
    width = max(len(cell) for row in (*cells, *heads.values()) for cell in row) + 3
    above: Cut | None = None
    for replica, (pipeline, row) in enumerate(zip(plan.pipelines, cells, strict=True)):
        if pipeline.cut != above:
            above, size = pipeline.cut, pipeline.num_ranks
            for first in range(0, pipeline.num_stages, size):
                chunk = heads[above][first : first + size]
                yield (" " * 11 + "".join(head.ljust(width) for head in chunk)).rstrip()
        yield (f"replica {replica}".ljust(11) + "".join(c.ljust(width) for c in row)).rstrip()


def _names(group: tuple[int, ...], cluster: Cluster) -> str:
    """Return the name of a rank's device, or of the first one of several and of the last."""
    first, last = (cluster.devices[device].name for device in (group[0], group[-1]))
    return first if len(group) == 1 else f"{first} to {last}"


def _sharing(plan: Plan) -> Iterator[str]:
    if plan.has_groups:
        degrees = [degree for pipeline in plan.pipelines for degree in pipeline.degrees]
        sizes = ", ".join(map(str, sorted(set(degrees))))
        yield f"ranks have {sizes} devices, {_SHARED[plan.sharing]}"
    for first, pipeline in zip(plan.first_ranks, plan.pipelines, strict=True):
        for rank, parts in enumerate(pipeline.data_parts, start=first):
            if parts > 1:
                yield f"rank {rank} divides each microbatch into {parts} parts before that"


_SHARED = {
    Sharing.TENSOR: "each with a part of every layer (tensor parallelism)",
    Sharing.SEQUENCE: "each with a part of every layer, and between its products of each sequence",
    Sharing.ZERO3: "each with a part of every parameter and of each microbatch (ZeRO-3)",
    Sharing.DATA: "each with all parameters and a part of each microbatch (data parallelism)",
}


def _layers(layers: range) -> str:
    one = len(layers) == 1
    return f"layer {layers.start}" if one else f"layers {layers.start}-{layers.stop - 1}"


def _links(plan: Plan, cluster: Cluster) -> Iterator[str]:
    # With chunks, the last rank sends back to the first one.
    rounds = [row if plan.num_chunks == 1 else (*row, row[0]) for row in plan.placement]
    hops = [hop for row in rounds for hop in pairwise(row) if hop[0] != hop[1]]
    if hops:
        yield f"activations cross {_slowest(hops, cluster)}"
    if plan.num_replicas > 1:
        columns = [
            [plan.device(rank) for rank in plan.holders(segment)]
            for segment in range(len(plan.segments))
        ]
        # All pairs: which of them exchange gradients depends on the all-reduce.
        pairs = [(a, b) for column in columns for a in column for b in column if a != b]
        yield f"gradients cross {_slowest(pairs, cluster)}"


def _codecs(plan: Plan) -> Iterator[str]:
    by_codecs: dict[tuple[CodecKind, ...], list[int]] = {}
    for replica, pipeline in enumerate(plan.pipelines):
        by_codecs.setdefault(pipeline.codecs, []).append(replica)
    for codecs, replicas in by_codecs.items():
        if codecs:
            one = len(replicas) == 1
            of = f"replica{'' if one else 's'} {', '.join(map(str, replicas))}"
            yield f"codecs between the stages of {of}: {', '.join(codecs)}"


def _slowest(pairs: list[tuple[int, int]], cluster: Cluster) -> str:
    links = [cluster.link(source, destination) for source, destination in pairs]
    latency_ms = ms_from_seconds(max(link.latency_s for link in links))
    gbps = gbps_from_bytes_per_s(min(link.bandwidth_bytes_per_s for link in links))
    return f"links of up to {latency_ms:g} ms and down to {gbps:g} Gbps"
