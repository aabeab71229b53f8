"""Gradient all-reduces of one step: started when a bucket is complete, awaited before the update.

::

    compute   backward 6   backward 7   backward 6   backward 7   scalars   update
              of stage 2   of stage 2   of stage 0   of stage 0   ▲
    reduce                 └── stage 2 ───┘          └── stage 0 ─┘
"""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import jax
import numpy as np

from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import (
    ALL_REDUCE_TAG,
    NORM_TAG,
    AllReduceHandle,
    AllReducer,
    HostOrDeviceArray,
    Transport,
    WireFormat,
    all_reduce,
    all_reduce_bytes,
)
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.schedule import Bucket, Instruction
from jaxpipe.trace import Lane


def reduction_tag(instruction: Instruction) -> int:
    """Return the tag of a reduction, unique within a step.

    Each segment has its own tag. The other buckets have one each, since the ranks that reduce them
    name them by different stages.

    >>> from jaxpipe.schedule import reduce
    >>> reduction_tag(reduce(0, Bucket.TIED)) == reduction_tag(reduce(3, Bucket.TIED))
    True
    >>> reduction_tag(reduce(0, Bucket.STAGE)) == reduction_tag(reduce(3, Bucket.STAGE))
    False
    """
    bucket = instruction.bucket
    assert bucket is not None, instruction
    if instruction.segment is not None:
        return ALL_REDUCE_TAG + len(Bucket) + instruction.segment
    return ALL_REDUCE_TAG + list(Bucket).index(bucket)


@dataclass(slots=True)
class _End:
    """The end of an all-reduce on the rank's clock, 0 until it has ended."""

    end_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pending:
    """An all-reduce under way, and its start and end on the rank's clock."""

    instruction: Instruction
    handle: AllReduceHandle[Any]
    num_bytes: int
    start_s: float
    end: _End


@dataclass(slots=True, kw_only=True)
class GradientSync:
    """The all-reduces of one step: each along its sync tree, by the algorithm of the plan.

    Those of gradients overlap with the computation and each other; the span of each lasts from its
    start to its end. `num_bytes` are those that the rank sends for all that it has started.
    """

    plan: Plan
    rank: int
    reducer: AllReducer
    wire: WireFormat
    recorder: SpanRecorder
    timeout_s: float
    pending: list[_Pending] = field(default_factory=list)
    num_bytes: int = 0

    def start(self, instruction: Instruction, array: HostOrDeviceArray) -> None:
        """Start the all-reduce that `instruction` names, and return at once."""
        bucket = instruction.bucket
        assert bucket is not None, instruction
        tree = self.plan.tree(bucket, segment=instruction.segment)
        is_exact = bucket is Bucket.SCALARS
        algorithm = AllReduceKind.TREE if is_exact else self.plan.all_reduce
        # Before `begin`: the span includes the wait for ranks that start it later.
        start_s = self.recorder.now()
        if not is_exact:
            like = jax.ShapeDtypeStruct(array.shape, array.dtype)
            self.num_bytes += all_reduce_bytes(
                self.rank, like, tree, algorithm=algorithm, wire=self.wire
            )
        handle = self.reducer.begin(
            cast(Any, array),  # its type variable is for one kind of array, not for either
            tree,
            tag=reduction_tag(instruction),
            timeout_s=self.timeout_s,
            algorithm=algorithm,
            wire=None if is_exact else self.wire,
        )
        end = _End()
        # In the reducer's thread: by the time that `wait` runs, it may have ended long ago. The
        # callback must not refer to the handle: as a cycle, a future would keep its array alive.
        handle.future.add_done_callback(partial(self._note_end, end))
        self.pending.append(
            _Pending(
                instruction=instruction,
                handle=handle,
                num_bytes=array.nbytes,
                start_s=start_s,
                end=end,
            )
        )

    def wait(self, is_needed: Callable[[Instruction], bool]) -> Iterator[tuple[Instruction, Any]]:
        """Wait for those that are needed, and yield each instruction with its reduced array.

        Raises:
            DeadlineError: an all-reduce did not end in time.
            TransportError: a message of an all-reduce could not be moved.
        """
        needed = [pending for pending in self.pending if is_needed(pending.instruction)]
        for pending in needed:
            total = pending.handle.wait(timeout_s=self.timeout_s)
            # A waiting thread may wake before the done callback has run.
            end_s = pending.end.end_s or self.recorder.now()
            self.recorder.add(
                Lane.REDUCE,
                pending.instruction,
                start_s=pending.start_s,
                end_s=end_s,
                num_bytes=pending.num_bytes,
            )
            self.pending.remove(pending)
            yield pending.instruction, total

    def start_norm(self, square_norm: float) -> AllReduceHandle[np.ndarray]:
        """Start to sum what ranks contribute to the squared norm, and return at once."""
        return self.reducer.begin(
            np.array([square_norm]),
            self.plan.tree(Bucket.SCALARS),
            tag=NORM_TAG,
            timeout_s=self.timeout_s,
            algorithm=AllReduceKind.TREE,
            wire=None,
        )

    def reduce_scalars(
        self, instruction: Instruction, scalars: np.ndarray, transport: Transport
    ) -> np.ndarray:
        """Return the scalars, summed over all ranks; gradients may be under way.

        They bypass the reducer, its codec and the plan's algorithm: the sums are exact (float64),
        a few bytes are all latency, for which a plain tree is best, and a thread would gain nothing
        as the rank has nothing left to compute.

        Raises:
            DeadlineError: a rank did not take part in time.
            TransportError: a message could not be moved.
        """
        with self.recorder.span(Lane.REDUCE, instruction, num_bytes=scalars.nbytes):
            return all_reduce(
                transport,
                scalars,
                self.plan.tree(Bucket.SCALARS),
                tag=reduction_tag(instruction),
                timeout_s=self.timeout_s,
            )

    def _note_end(self, end: _End, _: Future[Any]) -> None:
        end.end_s = self.recorder.now()
