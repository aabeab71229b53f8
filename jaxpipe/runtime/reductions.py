"""The gradient sums of one pass: begun when a bucket is complete, awaited before the update."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from jaxtyping import Array

from jaxpipe.comm import ALL_REDUCE_TAG, CountedTransport, all_reduce
from jaxpipe.plan import Plan
from jaxpipe.runtime.recorder import Recorder
from jaxpipe.schedule import Bucket, Instruction
from jaxpipe.trace import Lane


def reduction_tag(instruction: Instruction) -> int:
    """Return the tag of a reduction, which no other of the same step has.

    Stages have tags of their own; the other buckets are named by different stages on each rank.

    >>> from jaxpipe.schedule import reduce
    >>> reduction_tag(reduce(0, Bucket.SHARED)) == reduction_tag(reduce(3, Bucket.SHARED))
    True
    >>> reduction_tag(reduce(0, Bucket.STAGE)) == reduction_tag(reduce(3, Bucket.STAGE))
    False
    """
    bucket = instruction.bucket
    assert bucket is not None, instruction
    own = len(Bucket) + instruction.stage if bucket is Bucket.STAGE else list(Bucket).index(bucket)
    return ALL_REDUCE_TAG + own


@dataclass(frozen=True, slots=True, kw_only=True)
class Reductions:
    """Sums over the ranks that hold a bucket, each along its tree of the plan."""

    plan: Plan
    transport: CountedTransport
    recorder: Recorder
    timeout_s: float
    done: list[tuple[Instruction, Array]] = field(default_factory=list)

    def begin(self, instruction: Instruction, array: Array) -> None:
        """Begin the reduction that `instruction` names."""
        bucket = instruction.bucket
        assert bucket is not None, instruction
        with self.recorder.span(Lane.REDUCE, instruction, num_bytes=array.nbytes):
            total = all_reduce(
                self.transport,
                array,
                self.plan.tree(bucket, stage=instruction.stage),
                tag=reduction_tag(instruction),
                timeout_s=self.timeout_s,
            )
        self.done.append((instruction, total))

    def finish(self) -> Iterator[tuple[Instruction, Array]]:
        """Wait for all that were begun, and yield each with its sum."""
        yield from self.done
        self.done.clear()
