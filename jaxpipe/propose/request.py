"""Request of `jaxpipe plan`; imports fast, since `--help` needs it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jaxpipe.collective import CodecLimit
from jaxpipe.errors import ConfigError
from jaxpipe.finetune.lora_config import LoraConfig
from jaxpipe.runtime.config import MatmulPrecision, OptimizerName, Remat


class Goal(StrEnum):
    """The objective that a plan minimizes."""

    TIME = "time"
    """The simulated seconds of a step."""
    DTFM = "dtfm"
    """DT-FM's published cost of the placement."""
    DOLLARS = "dollars"
    """The dollars of a step, by the prices of the cluster file."""
    ENERGY = "energy"
    """The watt-hours of a step, by the power of the GPU types or of the cluster file."""
    ALPA = "alpa"
    """The seconds of a step that Alpa's inter-operator pass predicts."""


class NamedLayout(StrEnum):
    """A published baseline (`jaxpipe.baselines.published.named_layout`)."""

    P8 = "p8"
    """Megatron's pipeline of 8 stages."""
    T8 = "t8"
    """Megatron's tensor parallelism over 8 devices, without a pipeline."""
    P4T2 = "p4t2"
    """Megatron's 4 stages of 2 devices."""
    P2T4 = "p2t4"
    """Megatron's 2 stages of 4 devices."""
    ZERO3 = "zero3"
    """ZeRO-3 inside hosts, replicas across them."""
    DTFM = "dtfm"
    """DT-FM's, placed by its scheduler."""
    RANDOM = "random"
    """DT-FM's without its scheduler."""


class OuterQuestion(StrEnum):
    """Whether outer loops are compared with sums in every step."""

    NONE = "none"
    """They are not."""
    AUTO = "auto"
    """Islands of all numbers that divide the replicas, with and without a codec and a delay."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """The input of the planner, and the effort of its search.

    `cluster`, `model` and `batch` are required, unless a configuration states them.
    """

    cluster: str | None = None
    """A cluster of the catalogue, for example `case5-worldwide`, or a TOML file."""
    model: str | None = None
    """A preset, for example `gpt-xl-24`."""
    batch: int | None = None
    """Samples per step, over all replicas."""
    objective: Goal = Goal.TIME
    """What to minimize: the simulated `time` of a step, its `dollars`, which are those of a token
    times the tokens of a step, its `energy`, DT-FM's published cost, `dtfm`, or the time that
    `alpa`'s inter-operator pass predicts for stages on submeshes of equal size."""
    max_step_s: float | None = None
    """Time that a step may take, for the objectives `dollars` and `energy`: a floor of the
    throughput [s]."""
    max_step_dollars: float | None = None
    """Dollars that a step may cost, for the objectives `time` and `energy`."""
    max_dollars_per_million_tokens: float | None = None
    """The same for a million tokens."""
    max_step_watt_hours: float | None = None
    """Watt-hours that a step may take, for the objectives `time` and `dollars`."""
    max_tensor: int = 1
    """The most devices of a host that a rank may have, with tensor parallelism: 1, 2, 4 and so on
    are tried."""
    layout: NamedLayout | None = None
    """A published baseline instead of a search: Megatron's `p8`, `t8`, `p4t2` or `p2t4`, `zero3`
    inside hosts, `dtfm`, or `random`, which `--seed` shuffles (theirs: 2022)."""
    budget: float = 30.0
    """Seconds to search."""
    measure: bool = False
    """Also search for a schedule for the plan that is found; takes as long again, or longer."""
    outer: OuterQuestion = OuterQuestion.NONE
    """Compare outer loops on the plan that is found, as time per step and as time to equal loss:
    `auto`. Takes about a minute for 64 devices."""
    seed: int = 0
    """Seed of the search."""
    stages: int | None = None
    """The number of stages; chosen by default."""
    replicas: int | None = None
    """The number of replicas; chosen by default."""
    remat: Remat | None = None
    """Rematerialisation of each layer: `none`, `dots` or `full`, the default."""
    search_remat: bool = False
    """Search with each rematerialisation, in a third of the seconds, and take the best plan."""
    matmul_precision: MatmulPrecision | None = None
    """Precision of products of float32 matrices on GPUs, as with `run.matmul_precision`: `tf32`
    where a GPU has it, the default, or `float32`."""
    codecs: CodecLimit = CodecLimit.NONE
    """Also choose the codecs of messages, between stages and of gradients: among those that are
    `safe`, which cost no loss in our measurements, or `any`."""
    optimizer: OptimizerName | None = None
    """The optimizer whose moments devices have to hold, as with `optimizer.name`; `adamw` by
    default."""
    sharded_optimizer: bool = False
    """Shard the optimizer's moments over replicas (ZeRO-1), as with `optimizer.sharded`."""
    lora_rank: int = 0
    """Train low-rank adapters of this rank alone, as with `lora.rank`; 0 trains all parameters."""
    lora_targets: tuple[str, ...] = LoraConfig().targets
    """Patterns of the products that have adapters, as with `lora.targets`."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that are not trained, as with `train.frozen`."""
    profile: Path | None = None
    """File of measured costs of the model, instead of counted FLOPs."""
    profile_of: tuple[str, ...] = ()
    """Measured costs of the model on a GPU type of the cluster, `GPU=FILE`; may be repeated, once
    for each type. Other types are scaled from the first by their peaks."""
    tflops: float | None = None
    """TFLOP/s of devices whose speed the cluster does not state."""
    ideal: bool = False
    """Use links as the cluster states them, without the TCP overheads fitted to DT-FM's runs."""
    cold_connections: bool = False
    """Connections start slowly after silences, as the cluster file's `restart_kb` says: for runs
    with `run.keep_warm = false`."""

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise ConfigError(f"`--budget` must be above 0, not {self.budget}")
        if self.max_tensor < 1:
            raise ConfigError(f"`--max-tensor` must be at least 1, not {self.max_tensor}")
        if self.profile is not None and self.profile_of:
            raise ConfigError(
                f"a model has one profile, or one for each GPU type: `--profile` is "
                f"{self.profile}, `--profile-of` {' '.join(self.profile_of)}; leave out one of them"
            )
        try:
            _ = self.lora
        except ValueError as error:
            raise ConfigError(f"`--lora-rank` and `--lora-targets`: {error}") from error
        self._check_limits()
        self._check_remat()
        self._check_codecs()

    @property
    def lora(self) -> LoraConfig:
        """The adapters that are trained."""
        return LoraConfig(rank=self.lora_rank, targets=self.lora_targets)

    def _check_remat(self) -> None:
        if not self.search_remat:
            return
        given = (
            ("--remat", self.remat),
            ("--profile", self.profile),
            ("--profile-of", " ".join(self.profile_of) or None),
        )
        for option, value in given:
            if value is not None:
                raise ConfigError(
                    f"a search tries all rematerialisations: `{option}` is {value}, which is for "
                    "one of them; leave it out, or leave out `--search-remat`"
                )

    def _check_codecs(self) -> None:
        if self.codecs is CodecLimit.NONE:
            return
        if self.has_front:
            raise ConfigError(
                f"codecs are chosen by seconds: `--codecs` is {self.codecs}, and dollars or energy "
                "of a step matter; leave it out, or the objective and the limits of these"
            )
        if self.outer is not OuterQuestion.NONE:
            raise ConfigError(
                f"outer loops are compared with codecs of their own: `--outer` is {self.outer}, "
                f"`--codecs` {self.codecs}; leave out one of them"
            )

    def _check_limits(self) -> None:
        for name, goals in _LIMITS.items():
            option, value = f"--{name.replace('_', '-')}", getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"`{option}` must be above 0, not {value}")
            if value is not None and self.objective not in goals:
                raise ConfigError(
                    f"`{option}` is a limit for the objective {' or '.join(goals)}: it is {value}, "
                    f"and `--objective` {self.objective}; leave out one of them"
                )

    @property
    def counts_dollars(self) -> bool:
        """Whether the dollars of a step matter."""
        limits = (self.max_step_dollars, self.max_dollars_per_million_tokens)
        return self.objective is Goal.DOLLARS or any(each is not None for each in limits)

    @property
    def counts_energy(self) -> bool:
        """Whether the watt-hours of a step matter."""
        return self.objective is Goal.ENERGY or self.max_step_watt_hours is not None

    @property
    def has_front(self) -> bool:
        """Whether more than seconds matter, so that the search keeps a Pareto front."""
        return self.counts_dollars or self.counts_energy


_LIMITS = {
    "max_step_s": (Goal.DOLLARS, Goal.ENERGY),
    "max_step_dollars": (Goal.TIME, Goal.ENERGY),
    "max_dollars_per_million_tokens": (Goal.TIME, Goal.ENERGY),
    "max_step_watt_hours": (Goal.TIME, Goal.DOLLARS),
}
"""The objectives that each limit goes with."""
