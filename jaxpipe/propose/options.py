"""Options of `jaxpipe plan`: what to minimize, within which limits, and the effort of the search.

What a plan is for, and what of it is decided, is in the configuration. Imports fast, since `--help`
needs it.
"""

from dataclasses import dataclass
from enum import StrEnum

from jaxpipe.errors import ConfigError


class Goal(StrEnum):
    """The objective that a plan minimizes."""

    TIME = "time"
    """The simulated seconds of a step."""
    LOSS = "loss"
    """The seconds to the loss that uncompressed training reaches: over all compressions."""
    DTFM = "dtfm"
    """DT-FM's published cost of the placement."""
    DOLLARS = "dollars"
    """The dollars of a step, by the prices of the cluster file."""
    ENERGY = "energy"
    """The watt-hours of a step, by the power of the GPU types or of the cluster file."""


class OuterQuestion(StrEnum):
    """Whether outer loops are compared with sums in every step."""

    NONE = "none"
    """They are not."""
    AUTO = "auto"
    """Islands of all numbers that divide the replicas, with and without a codec and a delay."""


class TrainingSystem(StrEnum):
    """Another system that trains by pipeline parallelism, for which a plan is written as well."""

    TORCH_CSV = "torch-csv"
    """`torch.distributed.pipelining`: the schedule alone."""
    TORCHTITAN = "torchtitan"
    """The sections of a job file, and the schedule."""
    MEGATRON = "megatron"
    """Options of Megatron-LM."""
    DEEPSPEED = "deepspeed"
    """The configuration, and the partition of the layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchOptions:
    """The objective of a search, its limits and its effort."""

    objective: Goal = Goal.TIME
    """What to minimize: the simulated `time` of a step, its `dollars`, which are those of a token
    times the tokens of a step, its `energy`, DT-FM's published cost, `dtfm`, or the time to a
    `loss`, for which plans without compression, with codecs, boundaries of low rank and islands
    are searched, one after the other."""
    max_step_s: float | None = None
    """Time that a step may take, for the objectives `dollars` and `energy`: a floor of the
    throughput [s]."""
    max_step_dollars: float | None = None
    """Dollars that a step may cost, for the objectives `time` and `energy`."""
    max_dollars_per_million_tokens: float | None = None
    """The same for a million tokens."""
    max_step_watt_hours: float | None = None
    """Watt-hours that a step may take, for the objectives `time` and `dollars`."""
    max_loss_percent: float | None = None
    """Price in loss that a method may have, for the objective `loss`: how much higher the loss is
    after as many steps [%]."""
    max_tensor: int = 1
    """The most devices of a host that a rank may have, with tensor parallelism: 1, 2, 4 and so on
    are tried."""
    budget: float | None = None
    """Seconds to search. Default: 2, and half a second more for each device, up to 30."""
    outer: OuterQuestion = OuterQuestion.NONE
    """Compare outer loops on the plan that is found, as time per step and as time to equal loss:
    `auto`. Takes about a minute for 64 devices."""
    seed: int = 0
    """Seed of the search."""

    def __post_init__(self) -> None:
        if self.budget is not None and not self.budget > 0:
            raise ConfigError(f"`--budget` must be above 0, not {self.budget}")
        if self.max_tensor < 1:
            raise ConfigError(f"`--max-tensor` must be at least 1, not {self.max_tensor}")
        for name, goals in _LIMITS.items():
            option, value = f"--{name.replace('_', '-')}", getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"`{option}` must be above 0, not {value}")
            if value is not None and self.objective not in goals:
                raise ConfigError(
                    f"`{option}` is a limit for the objective {' or '.join(goals)}: it is {value}, "
                    f"and `--objective` {self.objective}; leave out one of them"
                )

    def seconds(self, num_devices: int) -> float:
        """Return the seconds of the search for a cluster of this size [devices]."""
        if self.budget is not None:
            return self.budget
        return min(_MOST_SECONDS, _LEAST_SECONDS + num_devices / 2)

    @property
    def counts_dollars(self) -> bool:
        """Whether the dollars of a step matter."""
        limits = (self.max_step_dollars, self.max_dollars_per_million_tokens)
        return self.objective is Goal.DOLLARS or any(limit is not None for limit in limits)

    @property
    def counts_energy(self) -> bool:
        """Whether the watt-hours of a step matter."""
        return self.objective is Goal.ENERGY or self.max_step_watt_hours is not None

    @property
    def has_front(self) -> bool:
        """Whether more than seconds matter, so that the search keeps a Pareto front."""
        return self.counts_dollars or self.counts_energy


_LEAST_SECONDS, _MOST_SECONDS = 2.0, 30.0

_LIMITS = {
    "max_step_s": (Goal.DOLLARS, Goal.ENERGY),
    "max_step_dollars": (Goal.TIME, Goal.ENERGY),
    "max_dollars_per_million_tokens": (Goal.TIME, Goal.ENERGY),
    "max_step_watt_hours": (Goal.TIME, Goal.DOLLARS),
    "max_loss_percent": (Goal.LOSS,),
}
"""The objectives that each limit goes with."""
