"""The progress of a simulated rank: its position, its messages, and the gradients it waits for."""

from collections.abc import Mapping
from typing import TypeAlias

from jaxpipe.schedule import Bucket, Instruction, Op
from jaxpipe.simulate.engine.posted_receives import Posts
from jaxpipe.simulate.engine.running_collectives import AllReduceKey
from jaxpipe.simulate.engine.step_model import Step

Message: TypeAlias = tuple[int, int, int, int, int | None]
"""The sending rank, the phase, the stages of sender and receiver, the microbatch."""


class SimulatedRank:
    """A rank: its position in its steps, arrived messages, and all-reduces in progress."""

    __slots__ = (
        "_sums_scalars_apart",
        "arrived",
        "awaited",
        "begun",
        "first",
        "index",
        "position",
        "posts",
        "since_s",
        "steps",
    )

    def __init__(
        self,
        index: int,
        *,
        first: int,
        steps: tuple[Step, ...],
        posts: Mapping[int, Posts],
        holds_all_stages: bool,
    ) -> None:
        """`first` is the first rank of its replica, of which the rank may hold all stages."""
        self.index = index
        self.first = first
        self.steps = steps
        # By position: the receives that are posted there, ahead of the computes that need them.
        self.posts = dict(posts)
        self.position = 0
        self.arrived: set[Message] = set()
        self.awaited: Message | None = None
        self.since_s = 0.0
        # The stage of each all-reduce in progress, and when it began.
        self.begun: dict[AllReduceKey, tuple[int, float]] = {}
        # With all stages a rank knows the norm of what it has summed, unless it has to be clipped.
        self._sums_scalars_apart = holds_all_stages and any(map(_is_update, steps))

    def begins(self, instruction: Instruction) -> AllReduceKey | None:
        """Return the asynchronous all-reduce that an instruction begins; None for all others."""
        if instruction.bucket is Bucket.STAGE:
            return instruction.segment
        if instruction.bucket is Bucket.SCALARS and not self._sums_scalars_apart:
            return None
        return instruction.bucket

    @property
    def waits_for_gradients(self) -> bool:
        """Whether the next instruction needs all-reduces in progress; that of None is a barrier.

        Scalars need the gradients of which they have the norm: that of replica 0, in which the
        first stage counts a tied embedding.
        """
        if not self.begun or self.position == len(self.steps):
            return False
        instruction = self.steps[self.position].instruction
        if instruction is None or instruction.op is Op.UPDATE:
            return True
        if instruction.bucket is not Bucket.SCALARS or self._sums_scalars_apart or self.first != 0:
            return False
        return any(key is not Bucket.TIED or self.index == 0 for key in self.begun)


def _is_update(step: Step) -> bool:
    return step.instruction is not None and step.instruction.op is Op.UPDATE
