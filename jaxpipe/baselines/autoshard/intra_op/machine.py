"""The speed of a device, in addition to the links of the mesh."""

from dataclasses import dataclass
from math import inf

from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The speed of each device: of products, of memory, and of starting a collective.

    Products take FLOP over `flops_per_s`. All other operators take the bytes of their results over
    `memory_bytes_per_s`; no time by default, because a compiler fuses them. `launch_s` prefers
    strategies with fewer collectives among those that move the same bytes.

    Raises:
        PlanError: a speed is not above 0, or `launch_s` is negative.
    """

    flops_per_s: float
    memory_bytes_per_s: float = inf
    launch_s: float = 5e-6  # seconds: about one kernel launch

    def __post_init__(self) -> None:
        for name in ("flops_per_s", "memory_bytes_per_s"):
            if not getattr(self, name) > 0:
                raise PlanError(
                    f"`{name}` must be above 0, is {getattr(self, name)}; give what is measured"
                )
        if not self.launch_s >= 0:
            raise PlanError(f"`launch_s` must not be negative, is {self.launch_s}; give seconds")
