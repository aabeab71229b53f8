"""ZeRO-1: which replica owns which optimizer shard, and the all-gather of updated parameters."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.collective import ranks
from jaxpipe.comm import HostOrDeviceArray, Transport, all_gather
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.zero1 import OptimizerShard
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, reduce


def optimizer_shard_of(plan: Plan, *, rank: int, stage: int) -> OptimizerShard | None:
    """Return the shard of a rank in one of its stages, or None if the stage has one replica.

    Shards are numbered in the order of the sync tree, so that an island has adjacent ones.
    """
    # A rank is in one replica, and has an optimizer of its own for each of its stages.
    order = ranks(plan.sync[stage])
    return OptimizerShard(index=order.index(rank), count=len(order)) if len(order) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGather:
    """The all-gather over the replicas of a stage, in messages of at most `chunk_bytes`."""

    plan: Plan
    transport: Transport
    timeout_s: float
    chunk_bytes: int

    def all_gather(self, own: HostOrDeviceArray, *, stage: int, size: int) -> np.ndarray:
        """Return the vector of `size` numbers to which each replica contributes its `own` shard.

        It reuses the tag of the stage's all-reduce, which has ended: all replicas run one after the
        other.

        Raises:
            DeadlineError: a shard did not arrive in time.
            TransportError: a message could not be moved.
        """
        return all_gather(
            self.transport,
            own,
            ranks(self.plan.sync[stage]),
            size=size,
            tag=reduction_tag(reduce(stage, Bucket.STAGE)),
            timeout_s=self.timeout_s,
            chunk_bytes=self.chunk_bytes,
        )
