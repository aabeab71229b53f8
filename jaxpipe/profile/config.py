"""How a model is measured: with which microbatch, and how often."""

from dataclasses import dataclass

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.config import Loop, Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """What every part is measured with.

    A call is repeated `repeats` times after `warmup` calls, or until `budget_s` seconds have gone,
    but at least three times. `sequence` is the model's where it is left out.
    """

    microbatch: int = 1
    sequence: int | None = None
    remat: Remat = Remat.NONE
    loop: Loop = Loop.UNROLLED
    repeats: int = 10
    warmup: int = 1
    budget_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("microbatch", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, is {getattr(self, name)}")
        if self.sequence is not None and self.sequence < 1:
            raise ConfigError(f"`sequence` must be at least 1, is {self.sequence}")
        if self.warmup < 0 or not self.budget_s > 0:
            raise ConfigError(
                f"calls take time: `warmup` is {self.warmup}, `budget_s` {self.budget_s}; make the "
                "one at least 0 and the other above 0"
            )
