"""ZeRO-1: which replica owns which optimizer shards, and the all-gather of updated parameters."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from jaxpipe.collective import ranks
from jaxpipe.comm import Transport, all_gather
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.zero1 import OptimizerShard
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, reduce


def optimizer_shards_of(plan: Plan, *, rank: int, stage: int) -> tuple[OptimizerShard, ...]:
    """Return a rank's shard of each segment of one of its stages; none if there is one replica.

    Shards are numbered in the order of the sync tree, so that an island has adjacent ones.
    """
    if plan.num_replicas == 1:
        return ()
    # A rank is in one replica, and has an optimizer of its own for each of its stages.
    segments = plan.segments_of(replica=plan.replica(rank), stage=stage)
    orders = [ranks(plan.sync[segment]) for segment in segments]
    return tuple(OptimizerShard(index=order.index(rank), count=len(order)) for order in orders)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGather:
    """All-gathers over the holders of a segment, in messages of at most `chunk_bytes`.

    Ranks of unlike replicas hold several segments of one stage, and meet other ranks in each: all
    of them gather in the order of the segments, whose numbers rise with the stages, so that no rank
    waits for one that waits for it.
    """

    plan: Plan
    transport: Transport
    timeout_s: float
    chunk_bytes: int

    def all_gather(
        self, pieces: Sequence[Sequence[np.ndarray]], *, stage: int, sizes: Sequence[int]
    ) -> tuple[tuple[np.ndarray, ...], ...]:
        """Return the vectors of a stage's segments, of `sizes`, for each group of them in `pieces`.

        Each replica contributes its shards: of the parameters, or of several moments.

        Raises:
            DeadlineError: a shard did not arrive in time.
            TransportError: a message could not be moved.
        """
        replica = self.plan.replica(self.transport.rank)
        segments = self.plan.segments_of(replica=replica, stage=stage)
        # All that a segment has before the next segment: its holders may not share the stage.
        by_segment = [
            [self._gathered(vector, segment=segment, size=size) for vector in vectors]
            for segment, size, *vectors in zip(segments, sizes, *pieces, strict=True)
        ]
        return tuple(zip(*by_segment, strict=True))

    def _gathered(self, piece: np.ndarray, *, segment: int, size: int) -> np.ndarray:
        """Return the vector of a segment.

        It reuses the tag of the segment's all-reduce, which has ended: all holders run one after
        the other.
        """
        if not size:  # all that the segment has is frozen, on all holders
            return piece
        return all_gather(
            self.transport,
            piece,
            ranks(self.plan.sync[segment]),
            size=size,
            tag=reduction_tag(reduce(0, Bucket.STAGE, segment=segment)),
            timeout_s=self.timeout_s,
            chunk_bytes=self.chunk_bytes,
        )
