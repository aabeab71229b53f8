"""Measured or estimated seconds of stages and messages, for generators that use them."""

import math
from dataclasses import dataclass

from jaxpipe.errors import PlanError


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """The seconds of a microbatch on each stage, and of a message from each stage to the next.

    A message takes as long in either direction.

    Raises:
        PlanError: there is not one duration for each stage and each hop, or one is not positive; a
            message may take no time.
    """

    forward_s: tuple[float, ...]
    backward_input_s: tuple[float, ...]
    backward_weight_s: tuple[float, ...]
    message_s: tuple[float, ...]

    def __post_init__(self) -> None:
        computes = (self.forward_s, self.backward_input_s, self.backward_weight_s)
        if {len(seconds) for seconds in computes} != {len(self.message_s) + 1}:
            raise PlanError(
                f"`message_s` has {len(self.message_s)} hops, and there are "
                f"{', '.join(str(len(seconds)) for seconds in computes)} stages; give seconds "
                "for each stage, and for each hop between two"
            )
        if not all(0 < duration < math.inf for seconds in computes for duration in seconds):
            raise PlanError(f"{self}: computes must take finite seconds above zero")
        if not all(0 <= seconds < math.inf for seconds in self.message_s):
            raise PlanError(f"`message_s` {self.message_s} must be finite seconds, not negative")

    @property
    def num_stages(self) -> int:
        """How many stages there are."""
        return len(self.forward_s)
