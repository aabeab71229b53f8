"""A stage whose computes are waits, as long as the real ones; its messages are its only arrays."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import jax
import numpy as np

from jaxpipe.paced.virtual_clock import VirtualClock
from jaxpipe.runtime.stage.calls import StageSpec
from jaxpipe.runtime.stage.gradient_buckets import Buckets
from jaxpipe.runtime.stage.mesh import ONE_DEVICE
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.split_backward import Carried
from jaxpipe.runtime.stage.vjp import Residuals
from jaxpipe.runtime.stage.zero1 import ShardedParameters
from jaxpipe.schedule import Instruction, Op
from jaxpipe.simulate.engine.step_model import StepModel

_ZERO = np.zeros((), np.float32)
_NO_RESIDUALS = Residuals(saved=(), index=(), structure=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedStage:
    """`StageCalls` of a stage that computes nothing: parameters and gradients are empty.

    Each forward and backward returns the same `message`, each step has the same `buckets`; nobody
    may write to them. `seconds` is how long a call of each op lasts.
    """

    spec: StageSpec
    seconds: Mapping[Op, float]
    clock: VirtualClock
    message: np.ndarray
    buckets: Buckets

    def init(self) -> tuple[Parameters, tuple[()]]:
        """Return nothing."""
        return {}, ()

    def cast(self, params: Parameters) -> Parameters:
        """Return the same parameters: none."""
        return params

    def zeros(self) -> Parameters:
        """Return nothing."""
        return {}

    def forward(self, *_: object) -> tuple[np.ndarray, Residuals]:
        """Sleep as long as a forward lasts."""
        return self.evaluate(), _NO_RESIDUALS

    def evaluate(self, *_: object) -> np.ndarray:
        """Sleep as long as a forward lasts."""
        self._sleep(Op.FORWARD)
        return _ZERO if self.spec.is_last else self.message

    def backward(self, *_: object) -> tuple[np.ndarray | None, Parameters]:
        """Sleep as long as a whole backward lasts."""
        self._sleep(Op.BACKWARD)
        return self._of_input(), {}

    def backward_input(self, *_: object) -> tuple[np.ndarray | None, Carried]:
        """Sleep as long as the input half of a backward lasts."""
        self._sleep(Op.BACKWARD_INPUT)
        return self._of_input(), Carried(values={}, crossing=(), split=None)

    def backward_weight(self, *_: object) -> Parameters:
        """Sleep as long as the weight half of a backward lasts."""
        self._sleep(Op.BACKWARD_WEIGHT)
        return {}

    def pack(self, *_: object) -> Buckets:
        """Return the buckets of every step."""
        return dict(self.buckets)

    def square_norm(self, *_: object) -> np.ndarray:
        """Return 0."""
        return _ZERO

    def update(self, *_: object) -> tuple[Parameters, tuple[()]]:
        """Sleep as long as an update lasts."""
        self._sleep(Op.UPDATE)
        return {}, ()

    def join(self, *_: object) -> Parameters:
        """Return nothing: what was gathered has no content."""
        return {}

    def _of_input(self) -> np.ndarray | None:
        # Nobody waits for the gradient of the tokens.
        return None if self.spec.is_first else self.message

    def _sleep(self, op: Op) -> None:
        self.clock.sleep(self.seconds[op])


@dataclass(frozen=True, slots=True, kw_only=True)
class PacedShards(ShardedParameters):
    """The sizes of a sharded optimizer: zeros, `num_values` of each segment, instead of parameters.

    What a real stage derives from its `shapes` is given.
    """

    num_values: tuple[int, ...]
    segments: tuple[int, ...] = ()
    shapes: Parameters = field(default_factory=dict)
    tied: bool = False

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many values of each segment all replicas gather."""
        return self.num_values

    def num_bytes(self, owned: Parameters) -> int:
        """Return the size of this replica's shards."""
        return sum(vector.nbytes for vector in self.vectors(owned))

    def vectors(self, owned: Parameters) -> tuple[np.ndarray, ...]:  # noqa: ARG002
        """Return this replica's shard of each segment: zeros."""
        sizes = zip(self.shards, self.num_values, strict=True)
        return tuple(np.zeros(shard.part(size=size).size, np.float32) for shard, size in sizes)


_TIMED = (Op.FORWARD, Op.BACKWARD, Op.BACKWARD_INPUT, Op.BACKWARD_WEIGHT, Op.UPDATE)


def paced_stage(
    job: StepModel,
    *,
    rank: int,
    stage: int,
    clock: VirtualClock,
    message: np.ndarray,
    buckets: Buckets,
    sharded: PacedShards | None = None,
) -> PacedStage:
    """Return a stage of a job whose computes last as long as the job says."""
    spec = StageSpec(
        is_first=stage == 0,
        is_last=stage == job.pipeline_size(rank) * job.num_chunks - 1,
        layout=ONE_DEVICE,
        received=jax.ShapeDtypeStruct(message.shape, message.dtype),
        activation=jax.ShapeDtypeStruct(message.shape, message.dtype),
        loss_cotangent=message,
        sharded=sharded,
    )
    seconds = {op: job.seconds(Instruction(op=op, stage=stage), rank=rank) for op in _TIMED}
    return PacedStage(spec=spec, seconds=seconds, clock=clock, message=message, buckets=buckets)
