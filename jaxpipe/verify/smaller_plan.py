"""Shrink a configuration and its plan to a size that one process computes in seconds.

::

    what                 becomes                                   so that this stays as it is
    widths, heads        4 a head, 2 heads for each device         what meshes and groups divide
    vocabulary           16, or 17 where a mesh does not divide it which tables are split
    sequence             8                                         what meshes divide
    layers of a segment  1, and 2, 3 .. for the distinct sizes     first, middle and last stages,
                         above 1                                   unequal cuts, which parts of
                                                                   stages are reduced together
    replicas             2 of each kind (3 if all are alike), and  unlike replicas, and every level
                         one more for each level of a sync tree    of a sync tree
    islands              2, unlike ones if there are, the same     outer steps, also of fragments,
                         replicas in each; 1 or 2 inner steps a    delayed and eager
                         fragment
    microbatches         at most 3 for each stage, and the same    warm-up, steady phase and
                         remainder by the ranks                    cool-down; unequal shares
    samples of one       1, and 2, 3 .. for each device of a mesh  weights of unequal shares

All stages of a replica stay. Layers stay where bottlenecks, full layers or a pattern of frozen
parameters count them, and microbatches under a schedule that is a file. Replicas are alike if they
differ in their devices alone: their ranks then have the same programs up to the names of ranks, and
the same functions.

**What this does not prove.** That numbers of the real sizes fit into their formats and buffers;
sums over more replicas, levels or microbatches than remain; a fault that needs a width, a sequence
or a number of layers above those kept (blocks of attention, for example); the formulas of layers,
optimizer and learning rate, which one device takes from the same code; the order of messages on a
real network. `Shrunk.left_out` lists what a configuration uses and this does not run.
"""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.collective.sync_tree import leader, ranks, relabelled, restricted
from jaxpipe.config import Config
from jaxpipe.models.gpt_config import Attention
from jaxpipe.outer import OuterConfig, QuorumConfig
from jaxpipe.plan import Plan
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.runtime.rank_mesh import MeshConfig, rank_mesh
from jaxpipe.schedule import ScheduleKind
from jaxpipe.verify.smaller_model import MeshParts, smaller_model, smaller_sequence

NUM_STEPS = 3
"""Steps that are computed: the second one reads moments that are not zero, and new samples; in the
third the learning rate is past its warm-up."""
_MOST_REPLICAS = 4
"""Of those that a sync tree adds: chains are as deep as they have ranks."""
_CHUNK_BYTES = 512
"""Of an all-reduce: small buckets cross in several messages, as large ones do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shrunk:
    """A smaller configuration with its plan, in the same shape as the real ones.

    `ranks[n]` is the rank of the real plan that rank n stands for. `sizes` says what has become
    smaller, `left_out` what is not run, and why.
    """

    config: Config
    plan: Plan
    ranks: tuple[int, ...]
    sizes: tuple[str, ...]
    left_out: tuple[str, ...]

    @property
    def num_devices(self) -> int:
        """The devices that the meshes of its ranks need in one process."""
        sizes = [mesh.num_devices for mesh in _meshes(self.config, self.plan)]
        return sum(sizes) if self.plan.has_groups else max(sizes)


def shrunk(config: Config, plan: Plan) -> Shrunk:
    """Return a configuration and a plan of the same shape, as small as symmetry allows."""
    parts = MeshParts.of(_meshes(config, plan))
    outer = _smaller_outer(config.outer)
    replicas = _kept_replicas(plan)
    if config.outer.is_on:
        replicas = _kept_of_islands(plan, config.outer.islands, num_kept=outer.islands)
    smaller, ranks_of_plan = _smaller_plan(config, plan, replicas, parts)
    sequence = smaller_sequence(config.model, config.train.sequence, parts)
    changed = replace(
        config,
        model=smaller_model(
            config.model,
            parts,
            num_layers=smaller.num_layers,
            sequence=sequence,
            is_shorter=(config.train.sequence or config.model.sequence) < config.model.sequence,
        ),
        comm=replace(config.comm, chunk_bytes=_CHUNK_BYTES),
        train=replace(
            config.train,
            steps=_num_steps(outer),
            batch=smaller.batch,
            sequence=None if config.train.sequence is None else sequence,
            eval_batches=min(2, config.train.eval_batches or 2),
        ),
        optimizer=replace(config.optimizer, warmup_steps=min(1, config.optimizer.warmup_steps)),
        outer=outer,
        quorum=QuorumConfig(),
    )
    return Shrunk(
        config=changed,
        plan=smaller,
        ranks=ranks_of_plan,
        sizes=tuple(_sizes((config, plan), (changed, smaller))),
        left_out=tuple(_left_out(config, plan)),
    )


def _kept_replicas(plan: Plan) -> tuple[int, ...]:
    """Return some replicas of each kind, and some on every level of each sync tree."""
    kinds: dict[tuple[object, ...], list[int]] = {}
    for replica, pipeline in enumerate(plan.pipelines):
        kinds.setdefault(_kind(pipeline), []).append(replica)
    of_kind = 3 if len(kinds) == 1 else 2
    remaining = {replica for alike in kinds.values() for replica in alike[:of_kind]}
    trees = (*plan.sync, plan.sync_shared, plan.sync_all)
    for tree in dict.fromkeys(trees):
        on_levels = [plan.replica(rank) for rank in _on_every_level(tree)]
        remaining |= set(list(dict.fromkeys(on_levels))[:_MOST_REPLICAS])
    return tuple(sorted(remaining))


def _kind(pipeline: Pipeline) -> tuple[object, ...]:
    """Return what two alike replicas have in common: all but their devices."""
    return (*pipeline.shape, pipeline.codecs)


def _smaller_outer(outer: OuterConfig) -> OuterConfig:
    """Return an outer loop of two islands with fewer inner steps, as its fragments and delay allow.

    >>> small = _smaller_outer(OuterConfig(islands=8, every=30, fragments=3, delay=4))
    >>> small.islands, small.every, small.fragments, small.delay
    (2, 4, 2, 1)
    """
    if not outer.is_on:
        return outer
    fragments = min(2, outer.fragments)
    apart = min(2, outer.every // outer.fragments)
    return replace(
        outer,
        islands=min(2, outer.islands),
        every=fragments * apart,
        fragments=fragments,
        delay=min(outer.delay, apart - 1),
    )


def _num_steps(outer: OuterConfig) -> int:
    """Return the inner steps: of an outer loop two outer steps or more."""
    if not outer.is_on:
        return NUM_STEPS
    return outer.every * max(2, math.ceil(NUM_STEPS / outer.every))


def _kept_of_islands(plan: Plan, num_islands: int, *, num_kept: int) -> tuple[int, ...]:
    """Return the replicas of unlike islands, if there are some, and in each the same ones."""
    size = plan.num_replicas // num_islands
    shapes = [
        tuple(_kind(p) for p in plan.pipelines[first : first + size])
        for first in range(0, plan.num_replicas, size)
    ]
    distinct = [shapes.index(shape) for shape in dict.fromkeys(shapes)]
    islands = list(dict.fromkeys([*distinct, *range(num_islands)]))[:num_kept]
    kinds: dict[tuple[object, ...], list[int]] = {}
    for replica in range(size):
        kinds.setdefault(tuple(shapes[n][replica] for n in islands), []).append(replica)
    most = 3 if len(kinds) == 1 else 2
    inside = sorted(replica for alike in kinds.values() for replica in alike[:most])
    return tuple(n * size + replica for n in sorted(islands) for replica in inside)


def _on_every_level(tree: SyncTree) -> tuple[int, ...]:
    """Return a rank beside each level of the deepest branch, and the rank at its end.

    >>> _on_every_level(((0, 1), (2, 3), 4))
    (2, 1, 0)
    """
    beside: list[int] = []
    while not isinstance(tree, int):
        if not tree:  # of a plan without such a tree
            return ()
        deepest = max(tree, key=_depth)
        beside += [leader(member) for member in tree if member is not deepest][:1]
        tree = deepest
    return (*beside, tree)


def _depth(tree: SyncTree) -> int:
    """Return the levels of a tree, 0 of a rank."""
    depth, level = 0, [tree]
    while level := [m for node in level if not isinstance(node, int) for m in node]:
        depth += 1
    return depth


def _smaller_plan(
    config: Config, plan: Plan, replicas: Sequence[int], parts: MeshParts
) -> tuple[Plan, tuple[int, ...]]:
    """Return the plan of some replicas, each with fewer layers and samples; and its ranks."""
    pipelines = [plan.pipelines[replica] for replica in replicas]
    ranks_of_plan = tuple(
        plan.first_ranks[replica] + number
        for replica in replicas
        for number in range(plan.pipelines[replica].num_ranks)
    )
    labels = {rank: number for number, rank in enumerate(ranks_of_plan)}

    def remaining(tree: SyncTree) -> SyncTree:
        members = set(ranks(tree)) & set(ranks_of_plan)
        return relabelled(restricted(tree, members), labels) if members else ()

    counts = [pipeline.num_microbatches for pipeline in pipelines]
    if isinstance(plan.schedule, ScheduleKind):
        counts = _fewer_microbatches(pipelines)
    new = zip(
        pipelines,
        _smaller_cuts(pipelines, keeps=_counts_layers(config)),
        counts,
        _fewer_samples(config, pipelines, parts),
        strict=True,
    )
    smaller = replace(
        plan,
        pipelines=tuple(
            replace(pipeline, cut=cut, num_microbatches=count, microbatch=size)
            for pipeline, cut, count, size in new
        ),
        all_reduce=(
            AllReduceKind.HIERARCHICAL if plan.all_reduce.facts.is_native else plan.all_reduce
        ),
        # Every cut remains, so segments are those of the plan.
        sync=tuple(map(remaining, plan.sync)),
        sync_shared=remaining(plan.sync_shared),
        sync_all=remaining(plan.sync_all),
    )
    return smaller, ranks_of_plan


def _counts_layers(config: Config) -> bool:
    """Return whether layers have numbers: of bottlenecks, full layers or frozen parameters."""
    names = ("bottlenecks", "full_layers")  # other families have no such fields
    has_numbers = any(getattr(config.model, name, ()) for name in names)
    return has_numbers or _names_layers(config.train.frozen)


def _names_layers(frozen: Sequence[str]) -> bool:
    """Return whether a pattern of frozen parameters names layers by their numbers.

    >>> _names_layers(("embed.*", "blocks.*.mlp.*")), _names_layers(("blocks.[0-3].*",))
    (False, True)
    """
    return any(re.match(r"blocks\.(?!\*)", pattern) for pattern in frozen)


def _smaller_cuts(pipelines: Sequence[Pipeline], *, keeps: bool) -> list[tuple[int, ...]]:
    """Return cuts with the same segments of fewer layers; `keeps` keeps all layers.

    >>> pair = [Pipeline(devices=(0, 1), cut=cut, num_microbatches=1) for cut in ((6, 6), (4, 8))]
    >>> _smaller_cuts(pair, keeps=False)
    [(5, 4), (3, 6)]
    """
    edges = sorted({edge for p in pipelines for edge in accumulate(p.cut, initial=0)})
    sizes = [end - start for start, end in pairwise(edges)]
    distinct = sorted({size for size in sizes if size > 1})
    smaller = {1: 1, **{size: 2 + number for number, size in enumerate(distinct)}}
    moved = dict(zip(edges, accumulate((smaller[s] for s in sizes), initial=0), strict=True))
    if keeps:
        moved = {edge: edge for edge in edges}
    return [
        tuple(
            moved[end] - moved[start]
            for start, end in pairwise(accumulate(pipeline.cut, initial=0))
        )
        for pipeline in pipelines
    ]


def _fewer_microbatches(pipelines: Sequence[Pipeline]) -> list[int]:
    """Return the microbatches of each replica: unequal ones stay unequal, in the same order.

    >>> shares = (64, 33, 7)
    >>> some = [Pipeline(devices=(0, 1), cut=(1, 1), num_microbatches=share) for share in shares]
    >>> _fewer_microbatches(some)
    [8, 7, 5]
    """
    counts: dict[int, int] = {}
    for real in sorted({pipeline.num_microbatches for pipeline in pipelines}):
        alike = [pipeline for pipeline in pipelines if pipeline.num_microbatches == real]
        period = math.lcm(*(pipeline.num_ranks for pipeline in alike))
        least = max(2 * p.num_stages + max(p.warmup or (0,)) for p in alike)
        least = max(least, 1 + max(counts.values(), default=0))
        # The remainder stays: schedules have rounds of as many microbatches as ranks.
        counts[real] = min(real, least + (real - least) % period)
    return [counts[pipeline.num_microbatches] for pipeline in pipelines]


def _fewer_samples(config: Config, pipelines: Sequence[Pipeline], parts: MeshParts) -> list[int]:
    """Return the samples of a microbatch of each replica: of each device of a mesh one, or two."""
    unit = math.lcm(parts.data, getattr(config.model, "routing_groups", 0) or 1)
    above = sorted({p.microbatch for p in pipelines if p.microbatch > unit})
    smaller = {size: unit * (2 + number) for number, size in enumerate(above)}
    return [min(p.microbatch, smaller.get(p.microbatch, unit)) for p in pipelines]


def _sizes(real: tuple[Config, Plan], small: tuple[Config, Plan]) -> Iterator[str]:
    """Yield a line for each size that has become smaller."""
    pairs = [_numbers(*real), _numbers(*small)]
    for name, before in pairs[0].items():
        after = pairs[1][name]
        yield f"{name} {after}" if before == after else f"{name} {before} -> {after}"


def _numbers(config: Config, plan: Plan) -> dict[str, str]:
    def of_replicas(values: Iterable[object]) -> str:
        texts = list(dict.fromkeys(map(str, values)))
        return ", ".join(texts[:4]) + (", ..." if len(texts) > 4 else "")

    pipelines = plan.pipelines
    return {
        "ranks": str(plan.num_ranks),
        "replicas": str(plan.num_replicas),
        "layers of each stage": of_replicas("+".join(map(str, p.cut)) for p in pipelines),
        "microbatches": of_replicas(p.num_microbatches for p in pipelines),
        "samples of a microbatch": of_replicas(p.microbatch for p in pipelines),
        "width": str(config.model.dim),
        "heads": str(config.model.num_heads),
        "vocabulary": str(config.model.vocabulary),
        "sequence": str(config.train.sequence or config.model.sequence),
        **({"islands": str(config.outer.islands)} if config.outer.is_on else {}),
    }


def _meshes(config: Config, plan: Plan) -> list[MeshConfig]:
    return [rank_mesh(plan, config.mesh, rank=rank) for rank in range(plan.num_ranks)]


def _left_out(config: Config, plan: Plan) -> Iterator[str]:
    """Yield what the configuration uses and is not run, each with the reason."""
    if plan.all_reduce.facts.is_native:
        yield f"the all-reduce of a library ({plan.all_reduce}): {AllReduceKind.HIERARCHICAL} here"
    if getattr(config.model, "attention", None) is Attention.FLASH:
        yield "the fused kernel of attention: products of matrices instead"
    if {config.model.param_dtype, config.model.compute_dtype} != {"float64"}:
        yield (
            f"rounding of {config.model.param_dtype} parameters and "
            f"{config.model.compute_dtype} activations: everything is float64"
        )
    yield "the network and its transport: ranks are threads of one process"
    if config.quorum.is_on:
        yield "the merge server and its other islands: this island trains alone"
    yield "checkpoints and resuming: every run starts at step 0"
