"""What `jaxpipe plan` is asked for; importable in an instant, since `--help` needs it."""

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.config import Remat


class Goal(StrEnum):
    """What a plan is to make small."""

    TIME = "time"
    """The simulated seconds of a step."""
    DTFM = "dtfm"
    """DT-FM's published cost of the placement."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """What is to be planned, and how hard to look."""

    cluster: str
    """One of the catalogue, such as `case5-worldwide`, or a TOML file."""
    model: str
    """A preset, such as `gpt-xl-24`."""
    batch: int
    """Samples in a step, over all replicas."""
    objective: Goal = Goal.TIME
    """What to make small: the simulated `time` of a step, or DT-FM's published cost, `dtfm`."""
    budget: float = 30.0
    """Seconds to search for."""
    measure: bool = False
    """Make a schedule to measure for the plan that is found; takes as long again, or longer."""
    seed: int = 0
    """Decides between runs of the same search."""
    stages: int | None = None
    """The number of stages, if it is not to be chosen."""
    replicas: int | None = None
    """The number of replicas, if it is not to be chosen."""
    remat: Remat = Remat.FULL
    """What a stage keeps of each layer's forward: `none`, `dots` or `full` rematerialisation."""
    sharded_optimizer: bool = False
    """Replicas share the optimizer's moments out, as `optimizer.sharded` makes them."""
    profile: Path | None = None
    """Measured costs of the model, instead of counted FLOPs."""
    tflops: float | None = None
    """What a device reaches of which the cluster says nothing."""
    ideal: bool = False
    """Take links as the cluster states them, not as DT-FM's runs found TCP to be."""

    def __post_init__(self) -> None:
        if not self.budget > 0:
            raise ConfigError(f"a search takes time: `--budget` is {self.budget}; make it above 0")
