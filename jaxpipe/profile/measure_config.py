"""Settings of a measurement: microbatch, sequence, and number of calls."""

from dataclasses import dataclass

from jaxpipe.errors import ConfigError
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.schedule import Remat


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureConfig:
    """Settings with which every part is measured.

    After `warmup` calls, `repeats` calls are timed, or as many as start within `budget_s` seconds,
    but at least three. `sequence` is the model's by default. `matmul_precision` is that of products
    of float32 matrices on GPUs, as in `run.matmul_precision`.
    """

    microbatch: int = 1
    sequence: int | None = None
    remat: Remat = Remat.NONE
    loop: Loop = Loop.UNROLLED
    matmul_precision: MatmulPrecision = MatmulPrecision.TF32
    repeats: int = 10
    warmup: int = 1
    budget_s: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("microbatch", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"`{name}` must be at least 1, not {getattr(self, name)}")
        if self.sequence is not None and self.sequence < 1:
            raise ConfigError(f"`sequence` must be at least 1, not {self.sequence}")
        if self.warmup < 0 or not self.budget_s > 0:
            raise ConfigError(
                f"`warmup` must be at least 0 and `budget_s` above 0, not {self.warmup} and "
                f"{self.budget_s}"
            )
