"""A plan is data: the placement of stages and replicas, the schedule, and the sync trees.

Ranks are numbered pipeline by pipeline; the stages of a pipeline go to its ranks in turn::

                 stage 0   stage 1             with two chunks      stages 0, 2   stages 1, 3
    replica 0    rank 0    rank 1                                   rank 0        rank 1
    replica 1    rank 2    rank 3                                   rank 2        rank 3

Replicas may be unlike: each has its own number of stages, its own partition of the layers, and its
own share of the batch. What a property says of "all replicas" is refused for such a plan.
"""

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.errors import PlanError
from jaxpipe.plan.group import Sharing
from jaxpipe.plan.partition import Cut, layers_of
from jaxpipe.plan.pipeline import Pipeline
from jaxpipe.plan.segments import refined, segments_within
from jaxpipe.schedule import (
    Bucket,
    Schedule,
    ScheduleKind,
    forward_only,
    generate,
    holder,
    lower,
)
from jaxpipe.schedule.remat import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that ranks agree on before the first step.

    `pipelines[replica]` are its devices, its partition and its microbatches; every rank holds
    `num_chunks` stages. `sync[segment]` is the tree over the ranks that hold the segment's layers
    (`jaxpipe.plan.segments`; a stage, if all replicas have the same partition), `sync_shared` over
    those that hold a tied embedding, `sync_all` over all ranks. `all_reduce` is the algorithm along
    these trees, which follow from the rest (`jaxpipe.plan.sync.with_trees`): a plan without them is
    not complete. `schedule` is the name of a generator, or a custom schedule of compute
    instructions. `sharing` is how ranks of several devices use them. `remat` is the
    rematerialisation of all stages; None until the plan is resolved.
    """

    pipelines: tuple[Pipeline, ...]
    schedule: ScheduleKind | Schedule
    tied: bool
    sync: tuple[SyncTree, ...] = ()
    sync_shared: SyncTree = ()
    sync_all: SyncTree = ()
    num_chunks: int = 1
    all_reduce: AllReduceKind = AllReduceKind.TREE
    sharing: Sharing = Sharing.TENSOR
    remat: Remat | None = None
    first_ranks: tuple[int, ...] = field(init=False, repr=False, compare=False)
    """The rank of each replica's first stage."""

    def __post_init__(self) -> None:
        sizes = (pipeline.num_ranks for pipeline in self.pipelines)
        object.__setattr__(self, "first_ranks", tuple(accumulate(sizes, initial=0))[:-1])

    @property
    def schedule_name(self) -> str:
        """The name of the schedule, or "custom"."""
        return self.schedule.value if isinstance(self.schedule, ScheduleKind) else "custom"

    @property
    def shape(self) -> str:
        """The stages and replicas as text, for example "2 stages x 1 replica"."""
        sizes = [pipeline.num_stages for pipeline in self.pipelines]
        if len(set(sizes)) == 1:
            stages = "stage" if sizes[0] == 1 else "stages"
            replicas = "replica" if self.num_replicas == 1 else "replicas"
            return f"{sizes[0]} {stages} x {self.num_replicas} {replicas}"
        return f"{' + '.join(map(str, sizes))} stages in {self.num_replicas} replicas"

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each rank, the one that sends and receives first."""
        return tuple(group for pipeline in self.pipelines for group in pipeline.groups)

    @property
    def has_groups(self) -> bool:
        """Whether any rank has several devices."""
        return any(pipeline.peers for pipeline in self.pipelines)

    @property
    def has_data_parts(self) -> bool:
        """Whether the devices of any rank divide samples before they share its stages."""
        return any(pipeline.data_parts for pipeline in self.pipelines)

    @property
    def placement(self) -> tuple[tuple[int, ...], ...]:
        """The devices of each replica, one for each rank of its pipeline: without peers."""
        return tuple(pipeline.devices for pipeline in self.pipelines)

    @property
    def is_even(self) -> bool:
        """Whether replicas differ in their devices alone."""
        return len({pipeline.shape for pipeline in self.pipelines}) == 1

    @property
    def has_whole_replicas(self) -> bool:
        """Whether there are several replicas, of one rank each."""
        return self.num_replicas > 1 and all(pipeline.num_ranks == 1 for pipeline in self.pipelines)

    @property
    def has_equal_cuts(self) -> bool:
        """Whether all replicas have the same partition; segments are stages then."""
        return len({pipeline.cut for pipeline in self.pipelines}) == 1

    @property
    def cut(self) -> Cut:
        """The number of layers of each stage, of all replicas."""
        return self._of_all("cut")

    @property
    def num_stages(self) -> int:
        """The number of stages of all replicas."""
        return self._of_all("num_stages")

    @property
    def num_pipeline_ranks(self) -> int:
        """The number of ranks of all replicas."""
        return self._of_all("num_ranks")

    @property
    def microbatch(self) -> int:
        """The samples of a microbatch of all replicas."""
        return self._of_all("microbatch")

    @property
    def num_microbatches(self) -> int:
        """The number of microbatches of all replicas."""
        return self._of_all("num_microbatches")

    @property
    def warmup(self) -> tuple[int, ...] | None:
        """The forwards before the first backward, for each stage of all replicas."""
        return self._of_all("warmup")

    @property
    def num_replicas(self) -> int:
        """The number of pipelines that train the same model."""
        return len(self.pipelines)

    @property
    def num_ranks(self) -> int:
        """The number of processes that execute the plan."""
        return sum(pipeline.num_ranks for pipeline in self.pipelines)

    @property
    def batch(self) -> int:
        """The samples of a step of all replicas together."""
        return sum(pipeline.num_samples for pipeline in self.pipelines)

    @property
    def num_layers(self) -> int:
        """The number of layers of the model."""
        return sum(self.pipelines[0].cut)

    @property
    def segments(self) -> Cut:
        """The number of layers of each segment; of all replicas' stages, if they are alike."""
        return refined(pipeline.cut for pipeline in self.pipelines)

    @property
    def shares_embedding(self) -> bool:
        """Whether several stages of a replica hold a tied embedding."""
        return self.tied and any(pipeline.num_stages > 1 for pipeline in self.pipelines)

    @property
    def has_codecs(self) -> bool:
        """Whether any replica has codecs of its own for the messages between its stages."""
        return any(pipeline.codecs for pipeline in self.pipelines)

    def of_each(self, **changes: Any) -> "Plan":
        """Return the plan with these fields of every pipeline replaced."""
        return replace(
            self, pipelines=tuple(replace(pipeline, **changes) for pipeline in self.pipelines)
        )

    def on_devices(self, placement: Iterable[tuple[int, ...]]) -> "Plan":
        """Return the plan with ranks of other single devices: a row for each replica."""
        return self.on_groups([(device,) for device in row] for row in placement)

    def on_groups(self, placement: Iterable[Iterable[tuple[int, ...]]]) -> "Plan":
        """Return the plan on other groups of devices: a row of them for each replica.

        Data parts stay where groups are as large as before.
        """
        rows = [tuple(row) for row in placement]
        moved = tuple(
            replace(pipeline, devices=tuple(g[0] for g in row), peers=tuple(g[1:] for g in row))
            for pipeline, row in zip(self.pipelines, rows, strict=True)
        )
        codecs_left = tuple(
            new if new.degrees == old.degrees else replace(new, data_parts=())
            for new, old in zip(moved, self.pipelines, strict=True)
        )
        return replace(self, pipelines=codecs_left)

    def rank(self, *, replica: int, stage: int) -> int:
        """Return the rank that holds a stage of a replica."""
        pipeline = self.pipelines[replica]
        return self.first_ranks[replica] + holder(stage, num_ranks=pipeline.num_ranks)

    def stage(self, rank: int) -> int:
        """Return the first stage that a rank holds; with one chunk it is the only one."""
        return self.stages(rank)[0]

    def stages(self, rank: int) -> range:
        """Return the stages that a rank holds, one per chunk."""
        return self.pipeline(rank).stages(self.number(rank))

    def replica(self, rank: int) -> int:
        """Return the replica that a rank is part of."""
        return bisect_right(self.first_ranks, rank) - 1

    def pipeline(self, rank: int) -> Pipeline:
        """Return the pipeline that a rank is part of."""
        return self.pipelines[self.replica(rank)]

    def number(self, rank: int) -> int:
        """Return the position of a rank in its pipeline."""
        return rank - self.first_ranks[self.replica(rank)]

    def device(self, rank: int) -> int:
        """Return the device on which a rank runs."""
        return self.pipeline(rank).devices[self.number(rank)]

    def group(self, rank: int) -> tuple[int, ...]:
        """Return the devices of a rank, the one that sends and receives first."""
        return self.pipeline(rank).groups[self.number(rank)]

    def rows(self, replica: int) -> range:
        """Return the share of a replica: its rows of the batch."""
        sizes = [pipeline.num_samples for pipeline in self.pipelines]
        return range(sum(sizes[:replica]), sum(sizes[: replica + 1]))

    def first_microbatch(self, replica: int) -> int:
        """Return the number of a replica's microbatch 0, counted over all replicas."""
        return sum(pipeline.num_microbatches for pipeline in self.pipelines[:replica])

    def segments_of(self, *, replica: int, stage: int) -> range:
        """Return the segments, by their numbers, of a stage of a replica."""
        return segments_within(self.segments, self.pipelines[replica].layers(stage))

    def segment_layers(self, *, replica: int, stage: int) -> tuple[int, ...]:
        """Return the number of layers of each segment of a stage of a replica."""
        numbers, layers = self.segments_of(replica=replica, stage=stage), self.segments
        return tuple(layers[number] for number in numbers)

    def holders(self, segment: int) -> tuple[int, ...]:
        """Return the ranks that hold a segment's layers, one of each replica."""
        layer = sum(self.segments[:segment])
        return tuple(
            self.rank(replica=replica, stage=_stage_with(layer, pipeline.cut))
            for replica, pipeline in enumerate(self.pipelines)
        )

    def embedding_holders(self) -> tuple[int, ...]:
        """Return the ranks that hold a tied embedding: the first and the last of each replica."""
        ends = zip(self.first_ranks, self.pipelines, strict=True)
        return tuple(
            rank
            for first, pipeline in ends
            for rank in sorted({first, first + pipeline.num_ranks - 1})
        )

    def layers(self, stage: int, *, replica: int | None = None) -> range:
        """Return the layers of a stage of a replica, or of every one."""
        return layers_of(self.cut if replica is None else self.pipelines[replica].cut, stage)

    def tree(self, bucket: Bucket, *, segment: int | None = None) -> SyncTree:
        """Return the tree of the all-reduce of a bucket, of `Bucket.STAGE` that of a segment."""
        if bucket is Bucket.STAGE:
            assert segment is not None, bucket
            return self.sync[segment]
        return self.sync_shared if bucket is Bucket.TIED else self.sync_all

    def compute_schedule(self, *, replica: int | None = None) -> Schedule:
        """Return the compute instructions of one training step of a replica, or of every one."""
        # A custom schedule has its warm-up built in.
        if not isinstance(self.schedule, ScheduleKind):
            return self.schedule
        pipeline = self._pipeline(replica)
        return generate(
            self.schedule,
            num_stages=pipeline.num_stages,
            num_microbatches=pipeline.num_microbatches,
            num_chunks=self.num_chunks,
            warmup=pipeline.warmup,
        )

    def train_schedule(self, *, replica: int | None = None, sharded: bool = False) -> Schedule:
        """Return the programs of one training step of a replica, or of every one.

        With a `sharded` optimizer (ZeRO-1) replicas gather the parameters that they have updated.
        """
        compute = self.compute_schedule(replica=replica)
        return self._lowered(compute, replica or 0, sharded=sharded)

    def eval_schedule(self, *, num_microbatches: int, replica: int | None = None) -> Schedule:
        """Return the programs that only compute the loss of some microbatches."""
        compute = forward_only(
            num_stages=self._pipeline(replica).num_stages,
            num_microbatches=num_microbatches,
            num_chunks=self.num_chunks,
        )
        return self._lowered(compute, replica or 0)

    def _lowered(self, compute: Schedule, replica: int, *, sharded: bool = False) -> Schedule:
        pipeline, segments = self.pipelines[replica], self.segments
        return lower(
            compute,
            num_replicas=self.num_replicas,
            tied=self.shares_embedding,
            sharded=sharded,
            segments=tuple(
                segments_within(segments, pipeline.layers(stage))
                for stage in range(pipeline.num_stages)
            ),
        )

    def _pipeline(self, replica: int | None) -> Pipeline:
        """Return the pipeline of a replica, or that of all."""
        if replica is None and not self.is_even:
            raise _unlike(
                "the schedule", (pipeline.num_microbatches for pipeline in self.pipelines)
            )
        return self.pipelines[replica or 0]

    def _of_all(self, name: str) -> Any:
        first, *others = (getattr(pipeline, name) for pipeline in self.pipelines)
        if any(other != first for other in others):
            raise _unlike(f"`{name}`", (first, *others))
        return first


def _stage_with(layer: int, cut: Cut) -> int:
    return bisect_right(tuple(accumulate(cut)), layer)


def _unlike(what: str, values: Iterable[Any]) -> PlanError:
    return PlanError(
        f"replicas that differ are not supported here: {what} of the plan's replicas is "
        f"{', '.join(map(str, values))}; use a plan whose replicas are alike"
    )
