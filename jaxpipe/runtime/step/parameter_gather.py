"""Who shares the optimizer of a stage out, and how they get together what each of them has."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.collective import ranks
from jaxpipe.comm import HostOrDeviceArray, Transport, all_gather
from jaxpipe.plan import Plan
from jaxpipe.runtime.stage.zero1 import OptimizerShard
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, reduce


def optimizer_shard_of(plan: Plan, *, rank: int, stage: int) -> OptimizerShard | None:
    """Return the share of a rank in a stage that it holds, or None if it has no replica.

    Shares are numbered in the order of the sync tree, so that islands hold neighbours.
    """
    order = ranks(plan.sync[stage])
    return OptimizerShard(index=order.index(rank), count=len(order)) if len(order) > 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterGather:
    """What all replicas of a stage need to gather shares, in messages of `chunk_bytes` at most."""

    plan: Plan
    transport: Transport
    timeout_s: float
    chunk_bytes: int

    def gather(self, own: HostOrDeviceArray, *, stage: int, size: int) -> np.ndarray:
        """Return the vector of `size` numbers of which each replica brings its share.

        It has the tag of the stage's reduction, which is over: replicas do both in one order.

        Raises:
            DeadlineError: a share was not there in time.
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
