"""The gradient sums of one pass: begun when a bucket is complete, awaited before the update.

::

    compute   backward 6   backward 7   backward 6   backward 7   scalars   update
              of stage 2   of stage 2   of stage 0   of stage 0   ▲
    reduce                 └── stage 2 ───┘          └── stage 0 ─┘
"""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import (
    ALL_REDUCE_TAG,
    AllReduceHandle,
    AllReducer,
    Transport,
    WireFormat,
    native_of,
)
from jaxpipe.errors import ConfigError
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.span_recorder import SpanRecorder
from jaxpipe.schedule import Bucket, Instruction
from jaxpipe.trace import Lane


def reduction_tag(instruction: Instruction) -> int:
    """Return the tag of a reduction, which no other of the same step has.

    Stages have tags of their own; the other buckets are named by different stages on each rank.

    >>> from jaxpipe.schedule import reduce
    >>> reduction_tag(reduce(0, Bucket.TIED)) == reduction_tag(reduce(3, Bucket.TIED))
    True
    >>> reduction_tag(reduce(0, Bucket.STAGE)) == reduction_tag(reduce(3, Bucket.STAGE))
    False
    """
    bucket = instruction.bucket
    assert bucket is not None, instruction
    own = len(Bucket) + instruction.stage if bucket is Bucket.STAGE else list(Bucket).index(bucket)
    return ALL_REDUCE_TAG + own


def check_all_reduce(plan: Plan, transport: Transport) -> None:
    """Check that the transport can sum gradients as the plan wants it.

    Raises:
        ConfigError: the plan wants the library of a transport that has none.
    """
    if plan.all_reduce is AllReduceKind.LIBRARY and native_of(transport) is None:
        raise ConfigError(
            f"a transport's own library sums where it has one, as MPI's: `plan.all_reduce` is "
            f"{plan.all_reduce}, but {type(transport).__name__} has none; choose another, such as "
            f"{AllReduceKind.HIERARCHICAL}"
        )


@dataclass(slots=True, kw_only=True)
class _Begun:
    """A sum under way, and when it began and ended on the rank's clock."""

    instruction: Instruction
    reducing: AllReduceHandle[Any]
    num_bytes: int
    start_s: float
    end_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientSync:
    """Sums over the ranks that hold a bucket, each along its tree of the plan, and as it says.

    They go on beside the computation and each other; the span of each lasts from where it was
    begun to where it was over.
    """

    plan: Plan
    worker: AllReducer
    wire: WireFormat
    recorder: SpanRecorder
    timeout_s: float
    begun: list[_Begun] = field(default_factory=list)

    def begin(self, instruction: Instruction, array: Any) -> None:
        """Begin the reduction that `instruction` names, and return at once."""
        bucket = instruction.bucket
        assert bucket is not None, instruction
        start_s = self.recorder.now()
        reducing = self.worker.begin(
            array,
            self.plan.tree(bucket, stage=instruction.stage),
            tag=reduction_tag(instruction),
            timeout_s=self.timeout_s,
            algorithm=self.plan.all_reduce,
            wire=self.wire,
        )
        begun = _Begun(
            instruction=instruction, reducing=reducing, num_bytes=array.nbytes, start_s=start_s
        )
        reducing.future.add_done_callback(partial(self._note_end, begun))
        self.begun.append(begun)

    def finish(self) -> Iterator[tuple[Instruction, Any]]:
        """Wait for all that were begun, and yield each with its sum.

        Raises:
            DeadlineError: a sum was not there in time.
            TransportError: a message of a sum could not be moved.
        """
        for each in self.begun:
            total = each.reducing.wait(timeout_s=self.timeout_s)
            # whoever waits may wake before the end was noted
            each.end_s = each.end_s or self.recorder.now()
            self.recorder.add(
                Lane.REDUCE,
                each.instruction,
                start_s=each.start_s,
                end_s=each.end_s,
                num_bytes=each.num_bytes,
            )
            yield each.instruction, total
        self.begun.clear()

    def _note_end(self, begun: _Begun, _: Future[Any]) -> None:
        begun.end_s = self.recorder.now()
