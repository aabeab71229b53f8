"""A plan is data: the placement of stages and replicas, the schedule, and the sync trees.

Ranks are numbered pipeline by pipeline; the stages of a pipeline go to its ranks in turn::

                 stage 0   stage 1             with two chunks      stages 0, 2   stages 1, 3
    replica 0    rank 0    rank 1                                   rank 0        rank 1
    replica 1    rank 2    rank 3                                   rank 2        rank 3
"""

from dataclasses import dataclass

from jaxpipe.collective import AllReduceKind, SyncTree
from jaxpipe.plan.partition import Cut, layers_of
from jaxpipe.schedule import (
    Bucket,
    Schedule,
    ScheduleKind,
    forward_only,
    generate,
    holder,
    lower,
    stages_held,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that ranks agree on before the first step.

    `cut[stage]` is the number of layers of a stage; every rank holds `num_chunks` stages.
    `placement[replica]` are devices of the cluster, one for each rank of the pipeline.
    `sync[stage]` is the tree over the ranks that hold the stage, `sync_shared` over those that hold
    a tied embedding, `sync_all` over all ranks. `warmup` is the number of forwards before the first
    backward, for each stage; `microbatch` is in samples. `all_reduce` is the algorithm along these
    trees. `schedule` is the name of a generator, or a custom schedule of compute instructions.
    """

    placement: tuple[tuple[int, ...], ...]
    cut: Cut
    schedule: ScheduleKind | Schedule
    warmup: tuple[int, ...] | None
    microbatch: int = 1
    num_microbatches: int
    tied: bool
    sync: tuple[SyncTree, ...]
    sync_shared: SyncTree
    sync_all: SyncTree
    num_chunks: int = 1
    all_reduce: AllReduceKind = AllReduceKind.TREE

    @property
    def schedule_name(self) -> str:
        """The name of the schedule, or "custom"."""
        return self.schedule.value if isinstance(self.schedule, ScheduleKind) else "custom"

    @property
    def num_stages(self) -> int:
        """The number of stages of a pipeline."""
        return len(self.cut)

    @property
    def num_pipeline_ranks(self) -> int:
        """The number of ranks of a pipeline."""
        return self.num_stages // self.num_chunks

    @property
    def num_replicas(self) -> int:
        """The number of pipelines that train the same model."""
        return len(self.placement)

    @property
    def num_ranks(self) -> int:
        """The number of processes that execute the plan."""
        return self.num_pipeline_ranks * self.num_replicas

    def rank(self, *, replica: int, stage: int) -> int:
        """Return the rank that holds a stage of a replica."""
        return replica * self.num_pipeline_ranks + holder(stage, num_ranks=self.num_pipeline_ranks)

    def stage(self, rank: int) -> int:
        """Return the first stage that a rank holds; with one chunk it is the only one."""
        return self.stages(rank)[0]

    def stages(self, rank: int) -> range:
        """Return the stages that a rank holds, one per chunk."""
        return stages_held(
            rank % self.num_pipeline_ranks,
            num_ranks=self.num_pipeline_ranks,
            num_stages=self.num_stages,
        )

    def replica(self, rank: int) -> int:
        """Return the replica that a rank is part of."""
        return rank // self.num_pipeline_ranks

    def device(self, rank: int) -> int:
        """Return the device on which a rank runs."""
        return self.placement[self.replica(rank)][rank % self.num_pipeline_ranks]

    def layers(self, stage: int) -> range:
        """Return the layers of a stage."""
        return layers_of(self.cut, stage)

    def tree(self, bucket: Bucket, *, stage: int) -> SyncTree:
        """Return the tree of the all-reduce of a bucket of a stage."""
        trees = {
            Bucket.STAGE: self.sync[stage],
            Bucket.TIED: self.sync_shared,
            Bucket.SCALARS: self.sync_all,
        }
        return trees[bucket]

    def compute_schedule(self) -> Schedule:
        """Return the compute instructions of one training step."""
        # A custom schedule has its warm-up built in.
        if not isinstance(self.schedule, ScheduleKind):
            return self.schedule
        return generate(
            self.schedule,
            num_stages=self.num_stages,
            num_microbatches=self.num_microbatches,
            num_chunks=self.num_chunks,
            warmup=self.warmup,
        )

    def train_schedule(self) -> Schedule:
        """Return the programs of one training step, the same for every replica."""
        return lower(self.compute_schedule(), num_replicas=self.num_replicas, tied=self.tied)

    def eval_schedule(self, *, num_microbatches: int) -> Schedule:
        """Return the programs that only compute the loss of some microbatches."""
        return lower(
            forward_only(
                num_stages=self.num_stages,
                num_microbatches=num_microbatches,
                num_chunks=self.num_chunks,
            ),
            num_replicas=self.num_replicas,
            tied=self.tied,
        )
