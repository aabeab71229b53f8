"""The messages of outer steps: between islands the outer gradients, within them the new anchor.

Replicas of an island are equal after each inner step, so each takes the outer step for its own
slice of a vector, with those of the other islands that have the same slice::

    island 0, replicas 0 and 1      | slice 0 | slice 1 |
                                         ↕         ↕         all-reduce across islands
    island 1, replicas 2 and 3      | slice 0 | slice 1 |
                                      └── all-gather ──┘     within each island

Each rank of R replicas sends `2 (M - 1) / M * n / R` values of a vector of n to other islands.
"""

from dataclasses import dataclass

import jax
import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.collective.shards import Part
from jaxpipe.collective.sync_tree import flat
from jaxpipe.comm import (
    AsyncAllReduce,
    CountingTransport,
    PendingAllReduce,
    WireFormat,
    all_gather,
    all_reduce,
    codec_of,
)
from jaxpipe.runtime.outer.job_part import JobPart
from jaxpipe.runtime.outer.outer_buckets import CONTROL_TAG, OuterBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterExchange:
    """The ends of one rank: `between` counts what it sends to other islands."""

    part: JobPart
    between: CountingTransport
    reducer: AsyncAllReduce
    wire: WireFormat

    @property
    def counterparts(self) -> tuple[int, ...]:
        """The ranks with the same stages and slices, one of each island, this one among them."""
        return self.part.island.counterparts[self.part.transport.rank]

    @property
    def other_islands(self) -> tuple[int, ...]:
        """The ranks, one of each other island, that this one waits for in an outer step."""
        return tuple(rank for rank in self.counterparts if rank != self.part.everyone.rank)

    def slice_of(self, bucket: OuterBucket, *, size: int) -> Part:
        """Return the slice of a bucket's vector for which this rank takes the outer steps."""
        order = self._replicas(bucket)
        return Part(0, size).cut(len(order))[order.index(self.part.transport.rank)]

    def begin(
        self, bucket: OuterBucket, gradient: np.ndarray
    ) -> PendingAllReduce[np.ndarray] | np.ndarray:
        """Start to sum the slices of all islands, and return at once; of one island it is the sum.

        The order of additions depends on the islands alone: all get the same bits, with any delay.
        """
        if len(self.counterparts) == 1:
            return gradient
        return self.reducer.begin(
            gradient,
            flat(self.counterparts),
            tag=self.tag(bucket),
            timeout_s=self._timeout_s,
            algorithm=AllReduceKind.HIERARCHICAL,
            wire=self.wire,
        )

    def wait(self, begun: PendingAllReduce[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return the sum.

        Raises:
            DeadlineError: another island is later than the timeout of the run.
            TransportError: a message could not be moved.
        """
        return begun if isinstance(begun, np.ndarray) else begun.wait(timeout_s=self._timeout_s)

    def gather(self, bucket: OuterBucket, own: np.ndarray, *, size: int) -> np.ndarray:
        """Return the whole vector from the slices of all replicas of this island."""
        return all_gather(
            self.part.transport,
            own,
            self._replicas(bucket),
            size=size,
            tag=self.tag(bucket),
            timeout_s=self._timeout_s,
            chunk_bytes=self.wire.chunk_bytes,
        )

    def hand_on(self, bucket: OuterBucket, vector: np.ndarray) -> None:
        """Send the vector of a tied embedding from the first to the last stage of this replica."""
        last = self._rank_of(self._num_stages - 1)
        if last != self.part.transport.rank:
            sending = self.part.transport.send(vector, to=last, tag=self.tag(bucket))
            sending.wait(timeout_s=self._timeout_s)

    def receive_tied(self, bucket: OuterBucket, *, size: int) -> np.ndarray:
        """Return the vector of a tied embedding that the first stage of this replica hands on."""
        first = OuterBucket(0, bucket.fragment, is_tied=True)
        like = jax.ShapeDtypeStruct((size,), np.dtype(np.float32))
        receiving = self.part.transport.receive(like, source=self._rank_of(0), tag=self.tag(first))
        return np.asarray(receiving.wait(timeout_s=self._timeout_s))

    def sum_over_all(self, scalars: np.ndarray) -> np.ndarray:
        """Return the scalars summed over all ranks of all islands."""
        return all_reduce(
            self.part.everyone,
            scalars,
            self.part.whole.plan.sync_all,
            tag=CONTROL_TAG,
            timeout_s=self._timeout_s,
        )

    def tag(self, bucket: OuterBucket) -> int:
        """Return the tag of a bucket; slices and whole vectors never travel at the same time."""
        return bucket.tag(num_fragments=self.part.whole.outer.fragments)

    @property
    def _timeout_s(self) -> float:
        return self.part.whole.run.timeout_s

    @property
    def _num_stages(self) -> int:
        return self.part.job.plan.pipeline(self.part.transport.rank).num_stages

    def _rank_of(self, stage: int) -> int:
        plan = self.part.job.plan
        return plan.rank(replica=plan.replica(self.part.transport.rank), stage=stage)

    def _replicas(self, bucket: OuterBucket) -> list[int]:
        plan = self.part.job.plan
        return [plan.rank(replica=r, stage=bucket.stage) for r in range(plan.num_replicas)]


def outer_exchange(part: JobPart) -> OuterExchange:
    """Return the exchange of a rank, with the codec of the section `[outer]`."""
    outer, between = part.whole.outer, CountingTransport(part.everyone)
    codec = codec_of(outer.codec, top_k_fraction=outer.top_k_fraction)
    return OuterExchange(
        part=part,
        between=between,
        reducer=AsyncAllReduce(between, feeds_back=outer.feeds_back),
        wire=WireFormat(far=codec, chunk_bytes=part.whole.comm.chunk_bytes),
    )
