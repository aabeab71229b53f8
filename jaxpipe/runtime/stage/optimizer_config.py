"""The sections `optimizer` and `loss_scale`; optimizers by name, each with its facts.

No jax here: the planner reads the facts.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Self

from jaxpipe.ranges import Range, check_ranges

_AT_LEAST_1 = Range(least=1)
_LEAST = 2.0**-126
"""Of a float32: smaller numbers are 0 on accelerators."""
_NORM = Range(least=_LEAST, most=1e38, why="norms are float32")
_DECAYS = "times the learning rate, it is a part of a parameter"
_RATE = Range(
    least=_LEAST, most=1e38, why="updates are float32; those that are not finite end a run"
)
_EPSILON = Range(least=_LEAST, most=1, why="it is for a second moment near 0")
_SCALE = Range(least=1, most=2.0**126, why="a scaled loss is a float32")
_PART = Range(above=0, most=1)
_FRACTION = Range(least=0, most=1)
_DECAY_RATE = Range(least=0, most=1 - 2.0**-24, why="in float32, what is nearer to 1 is 1")
MOMENTS: Final = ("mu", "nu", "trace", "v_row", "v_col", "v", "master")
"""The names of moments in optax, and of master weights, which are kept as moments are; the prefixes
of their tensors in a checkpoint."""

_MOST_STEPS = 2**31 - 1
_16_BITS = ("bfloat16", "float16")
_COUNTED_STEPS = Range(least=0, most=_MOST_STEPS, why="optimizers count steps in 32 bits")


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerFacts:
    """The facts of an optimizer.

    `build` names the function ("module:function") that returns it from the section `optimizer`, the
    learning rate and the mask of the parameters with weight decay. `num_moments` is the number of
    values that it keeps for each parameter.
    """

    build: str
    num_moments: int


_BUILDERS = "jaxpipe.runtime.stage.optimizer"


class OptimizerName(StrEnum):
    """The rule that turns gradients into updates; all decay weights apart from them."""

    facts: OptimizerFacts

    def __new__(cls, name: str, facts: OptimizerFacts) -> Self:
        """Return the member `name`, which is a string and carries its facts."""
        optimizer = str.__new__(cls, name)
        optimizer._value_ = name
        optimizer.facts = facts
        return optimizer

    ADAMW = "adamw", OptimizerFacts(build=f"{_BUILDERS}:adamw", num_moments=2)
    """AdamW: two moments. Source: Loshchilov and Hutter 2019, "Decoupled weight decay"."""
    LION = "lion", OptimizerFacts(build=f"{_BUILDERS}:lion", num_moments=1)
    """Lion: the sign of a momentum; wants a learning rate 3 to 10 times smaller, and `beta2` 0.99.
    Source: Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms"."""
    SGD = "sgd", OptimizerFacts(build=f"{_BUILDERS}:sgd", num_moments=1)
    """Gradient descent with the momentum `beta1`; with 0 no moment is kept."""
    MUON = "muon", OptimizerFacts(build=f"{_BUILDERS}:muon", num_moments=2)
    """Muon: matrices of layers move along an orthogonalised momentum, each in its stage; the
    embedding, the head, norms and biases by AdamW with a Nesterov momentum. Source: Jordan et al.
    2024, "Muon: an optimizer for hidden layers in neural networks"."""
    ADAFACTOR = "adafactor", OptimizerFacts(build=f"{_BUILDERS}:adafactor", num_moments=0)
    """Adafactor: of the second moment of a matrix, the means of rows and columns alone, and no
    first moment; updates are relative to the root mean square of each tensor, and want a learning
    rate near 1e-2. `beta1`, `beta2` and `epsilon` have no effect. Source: Shazeer and Stern 2018,
    "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost"."""


class Schedule(StrEnum):
    """How the learning rate changes after its linear warm-up."""

    COSINE = "cosine"
    """Decreases along a cosine until the last step."""
    WSD = "wsd"
    """Stays at its peak, and decreases linearly in the last `decay_fraction` of the steps."""
    LINEAR = "linear"
    """Decreases linearly until the last step."""
    CONSTANT = "constant"
    """Stays at its peak."""


class Decayed(StrEnum):
    """The parameters that `weight_decay` makes smaller."""

    MATRICES = "matrices"
    """Matrices of layers, tables and the head; not norms and biases."""
    BLOCKS = "blocks"
    """Matrices of layers alone."""
    ALL = "all"
    """All parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerConfig:
    """The optimizer by its name, and its learning rate.

    The learning rate rises linearly to its peak, then follows `schedule`. Gradient accumulation is
    that of the pipeline: a step sums over its microbatches.
    """

    name: OptimizerName = OptimizerName.ADAMW
    """The rule that turns gradients into updates."""
    schedule: Schedule = Schedule.COSINE
    """How the learning rate changes after the warm-up."""
    decay_fraction: Annotated[float, _PART] = 0.2
    """The part of all steps in which the learning rate of `wsd` decreases."""
    learning_rate: Annotated[float, _RATE] = 1e-3
    """Peak of the learning rate, after the warm-up."""
    warmup_steps: Annotated[int, _COUNTED_STEPS] = 20
    """Duration of the linear warm-up [steps]; 0 starts at the peak."""
    final_fraction: Annotated[float, _FRACTION] = 0.1
    """Learning rate at the last step, as a fraction of the peak; not of `constant`."""
    beta1: Annotated[float, _DECAY_RATE] = 0.9
    """Decay rate of the first moment, per step; the momentum of `sgd` and of `muon`."""
    beta2: Annotated[float, _DECAY_RATE] = 0.95
    """Decay rate of the second moment, per step; of the only one of `lion`."""
    epsilon: Annotated[float, _EPSILON] = 1e-8
    """Added to the square root of the second moment, against division by zero."""
    weight_decay: Annotated[float, Range(least=0, most=1000, why=_DECAYS)] = 0.1
    """Decoupled weight decay, times the learning rate."""
    decayed: Decayed = Decayed.MATRICES
    """The parameters with weight decay."""
    clip_norm: Annotated[float, _NORM] = 1.0
    """Maximum of the global norm of the gradients over all stages; larger ones are scaled down."""
    sharded: bool = False
    """Shard the optimizer over the replicas of each stage (ZeRO-1): each keeps the moments of an
    equal part of the parameters, updates it, and gathers the rest. Less memory, more messages, the
    same losses up to rounding. By default every replica has all moments."""

    master_weights: bool | None = None
    """Keep float32 copies of parameters of 16 bits (`model.param_dtype`), with moments of float32,
    and round the updated copies: no update is lost. By default where parameters have 16 bits."""

    def __post_init__(self) -> None:
        check_ranges(self)

    @property
    def num_moments(self) -> int:
        """The values that the optimizer keeps for each parameter.

        >>> OptimizerConfig(name=OptimizerName.SGD, beta1=0.0).num_moments
        0
        """
        has_no_momentum = self.name is OptimizerName.SGD and self.beta1 == 0
        return 0 if has_no_momentum else self.name.facts.num_moments

    def has_master_weights(self, param_dtype: str) -> bool:
        """Return whether parameters of a format have float32 copies.

        >>> OptimizerConfig().has_master_weights("bfloat16")
        True
        """
        return param_dtype in _16_BITS and self.master_weights is not False


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScaleConfig:
    """Dynamic loss scaling, against underflow of float16 gradients.

    A step whose gradients are not finite is skipped. Powers of two change no bit of float32.
    """

    enabled: bool | None = None
    """Whether the loss is scaled; by default only if `model.compute_dtype` is float16."""
    initial: Annotated[float, _SCALE] = 2.0**16
    """Scale of the first step, from 1 to `largest`."""
    factor: Annotated[float, Range(above=1, most=2.0**126)] = 2.0
    """Divides the scale after a step that overflows, but never below 1; multiplies it after
    `growth_steps` steps without overflow."""
    growth_steps: Annotated[int, _AT_LEAST_1] = 2000
    """Steps in a row without overflow before the scale grows [steps]."""
    largest: Annotated[float, _SCALE] = 2.0**24
    """Maximum of the scale."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if self.initial > self.largest:
            raise ValueError(
                f"`initial` must be at most `largest` ({self.largest:g}), not {self.initial:g}"
            )
