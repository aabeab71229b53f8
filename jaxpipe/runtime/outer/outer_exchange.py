"""The messages of outer steps: between islands the outer gradients, within them the new anchor.

Replicas of an island are equal after each inner step, so each takes the outer step for its own
slice of a vector, with those of the other islands that have the same slice::

    island 0, replicas 0 and 1      | slice 0 | slice 1 |
                                         ↕         ↕         all-reduce across islands
    island 1, replicas 2 and 3      | slice 0 | slice 1 |
                                      └── all-gather ──┘     within each island

Each rank of R replicas sends `2 (M - 1) / M * n / R` values of a vector of n to other islands.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxpipe.collective import AllReduceKind, SyncTree, codec_of
from jaxpipe.collective.shards import ElementRange
from jaxpipe.collective.sync_tree import flat
from jaxpipe.comm import (
    AllReduceHandle,
    AllReducer,
    AsyncAllReduce,
    CountingTransport,
    Sending,
    Transport,
    WireFormat,
    all_gather,
    all_reduce,
)
from jaxpipe.plan import Island
from jaxpipe.runtime.outer.job_part import JobPart
from jaxpipe.runtime.outer.outer_buckets import CONTROL_TAG, FLOAT32, OuterBucket


@dataclass(frozen=True, slots=True, kw_only=True)
class OuterExchange:
    """The ends of one rank: `between` counts what it sends to other islands.

    `inside` connects the ranks of its island, `everyone` those of all of them, which sum scalars
    along the tree `sync_all`.
    """

    island: Island
    inside: Transport
    everyone: Transport
    between: CountingTransport
    reducer: AllReducer
    wire: WireFormat
    sync_all: SyncTree
    num_fragments: int
    timeout_s: float
    handed_on: list[Sending] = field(default_factory=list[Sending])

    @property
    def counterparts(self) -> tuple[int, ...]:
        """The ranks with the same stages and slices, one of each island, this one among them."""
        return self.island.counterparts[self.inside.rank]

    @property
    def other_islands(self) -> tuple[int, ...]:
        """The ranks, one of each other island, that this one waits for in an outer step."""
        return tuple(rank for rank in self.counterparts if rank != self.everyone.rank)

    def slice_of(self, bucket: OuterBucket, *, size: int) -> ElementRange:
        """Return the slice of a bucket's vector for which this rank takes the outer steps."""
        order = self._replicas(bucket)
        return ElementRange(0, size).cut(len(order))[order.index(self.inside.rank)]

    def begin(
        self, bucket: OuterBucket, gradient: np.ndarray
    ) -> AllReduceHandle[np.ndarray] | np.ndarray:
        """Start to sum the slices of all islands, and return at once; of one island it is the sum.

        The order of additions depends on the islands alone: all get the same bits, with any delay.
        """
        if len(self.counterparts) == 1:
            return gradient
        return self.reducer.begin(
            gradient,
            flat(self.counterparts),
            tag=self.tag(bucket),
            timeout_s=self.timeout_s,
            algorithm=AllReduceKind.HIERARCHICAL,
            wire=self.wire,
        )

    def wait(self, begun: AllReduceHandle[np.ndarray] | np.ndarray) -> np.ndarray:
        """Return the sum.

        Raises:
            DeadlineError: another island is later than the timeout of the run.
            TransportError: a message could not be moved.
        """
        return begun if isinstance(begun, np.ndarray) else begun.wait(timeout_s=self.timeout_s)

    def gather(self, bucket: OuterBucket, piece: np.ndarray, *, size: int) -> np.ndarray:
        """Return the whole vector from the slices of all replicas of this island."""
        return all_gather(
            self.inside,
            piece,
            self._replicas(bucket),
            size=size,
            tag=self.tag(bucket),
            timeout_s=self.timeout_s,
            chunk_bytes=self.wire.chunk_bytes,
        )

    def whole(
        self,
        bucket: OuterBucket,
        slices: Mapping[OuterBucket, np.ndarray],
        *,
        size: int,
        dtype: np.dtype = FLOAT32,
    ) -> np.ndarray:
        """Return the whole vector of a bucket from the `slices` of all replicas of this island.

        The first stage hands a tied embedding on to the last one, which has no slice of it.
        """
        if bucket in slices:
            vector = self.gather(bucket, slices[bucket], size=size)
            if bucket.is_tied:
                self._hand_on(bucket, vector)
            return vector
        first = OuterBucket(0, bucket.fragment, is_tied=True)
        if first in slices:  # this rank has both ends of the model
            return self.gather(first, slices[first], size=size)
        like = jax.ShapeDtypeStruct((size,), dtype)
        receiving = self.inside.receive(like, source=self._rank_of(0), tag=self.tag(first))
        return np.asarray(receiving.wait(timeout_s=self.timeout_s))

    def sum_over_all(self, scalars: np.ndarray) -> np.ndarray:
        """Return the scalars summed over all ranks of all islands."""
        return all_reduce(
            self.everyone, scalars, self.sync_all, tag=CONTROL_TAG, timeout_s=self.timeout_s
        )

    def finish(self) -> None:
        """Wait until what was handed on has been sent.

        Raises:
            DeadlineError: it takes longer than the timeout of the run.
            TransportError: a message could not be moved.
        """
        while self.handed_on:
            self.handed_on.pop().wait(timeout_s=self.timeout_s)

    def tag(self, bucket: OuterBucket) -> int:
        """Return the tag of a bucket; slices and whole vectors never travel at the same time."""
        return bucket.tag(num_fragments=self.num_fragments)

    def _hand_on(self, bucket: OuterBucket, vector: np.ndarray) -> None:
        last = self._rank_of(self.island.plan.pipeline(self.inside.rank).num_stages - 1)
        if last != self.inside.rank:
            # `finish` waits: the first stage has computes to begin, and the last one waits anyway.
            self.handed_on.append(self.inside.send(vector, to=last, tag=self.tag(bucket)))

    def _rank_of(self, stage: int) -> int:
        plan = self.island.plan
        return plan.rank(replica=plan.replica(self.inside.rank), stage=stage)

    def _replicas(self, bucket: OuterBucket) -> list[int]:
        plan = self.island.plan
        return [plan.rank(replica=r, stage=bucket.stage) for r in range(plan.num_replicas)]


def outer_exchange(part: JobPart) -> OuterExchange:
    """Return the exchange of a rank, with the codec of the section `[outer]`."""
    job, between = part.whole_job, CountingTransport(part.everyone)
    codec = codec_of(job.outer.codec, top_k_fraction=job.outer.top_k_fraction)
    return OuterExchange(
        island=part.island,
        inside=part.transport,
        everyone=part.everyone,
        between=between,
        reducer=AsyncAllReduce(between, feeds_back=job.outer.feeds_back),
        wire=WireFormat(far=codec, chunk_bytes=job.comm.chunk_bytes),
        sync_all=job.plan.sync_all,
        num_fragments=job.outer.fragments,
        timeout_s=job.run.timeout_s,
    )
