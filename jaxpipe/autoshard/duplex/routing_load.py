"""How many rows experts get under the routing of each system.

::

    sequence   slots of an expert per sequence: k x factor x tokens / experts; the mask of a
               sequence has tokens x experts x slots elements                        (GShard, HiDup)
    device     the same for all tokens of a device, whose mask grows with their square   (DeepSpeed)
    none       k rows for each token, without slots or mask; compute waits for the fullest device
               (FastMoE)

Without a capacity, popularity decides. First choices follow Zipf's law: that of the i-th expert is
proportional to i^-s; further choices are spread evenly. Experts are dealt to devices in turn.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil

from jaxpipe.autoshard.duplex.transformer_graph import ExpertSizes

_LEAST_SLOTS = 4
"""DeepSpeed's `min_capacity`."""


class RoutingGroup(StrEnum):
    """Among which tokens the slots of an expert are shared."""

    SEQUENCE = "sequence"
    DEVICE = "device"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingLoad:
    """What is routed on each device.

    Args:
        num_experts: of one layer, over all devices.
        num_devices: over which experts are split.
        experts_per_token: how many experts process a token.
        capacity_factor: slots per token and choice.
        tokens: of a sequence that are routed.
        sequences: of a device.
        skew: s, the exponent of the popularity of experts; 0 if all are equally popular.
        whole_slots: whether the slots of a sequence are rounded up.
    """

    num_experts: int
    num_devices: int
    experts_per_token: int
    capacity_factor: float
    tokens: int
    sequences: int
    skew: float = 0.0
    whole_slots: bool = True

    def sizes(self, group: RoutingGroup) -> ExpertSizes:
        """Return the slots per sequence and the columns of the mask.

        >>> load = RoutingLoad(num_experts=8, num_devices=8, experts_per_token=2,
        ...     capacity_factor=1.25, tokens=128, sequences=16)
        >>> for group in RoutingGroup:
        ...     sizes = load.sizes(group)
        ...     print(group, sizes.slots, sizes.mask_slots)
        sequence 40 320
        device 40.0 5120
        none 32.0 0
        """
        wanted = self.experts_per_token * self.tokens / self.num_experts
        count = self.num_experts
        if group is RoutingGroup.SEQUENCE:
            slots = wanted * self.capacity_factor
            slots = ceil(round(slots, 9)) if self.whole_slots else slots
            return ExpertSizes(num_experts=count, slots=slots, mask_slots=count * slots)
        if group is RoutingGroup.DEVICE:
            whole = ceil(round(wanted * self.capacity_factor * self.sequences, 9))
            whole = max(whole, _LEAST_SLOTS)
            slots = whole / self.sequences
            return ExpertSizes(num_experts=count, slots=slots, mask_slots=count * whole)
        return ExpertSizes(num_experts=count, slots=wanted, mask_slots=0, fullest=self.fullest())

    def fullest(self) -> float:
        """Return the load of the fullest device, over the mean.

        >>> load = RoutingLoad(num_experts=2, num_devices=2, experts_per_token=1,
        ...     capacity_factor=1.0, tokens=1, sequences=1, skew=1.0)
        >>> round(load.fullest(), 3)  # 2/3 of the tokens where 1/2 is the mean
        1.333
        """
        popularity = [(number + 1) ** -self.skew for number in range(self.num_experts)]
        # The first device has the most popular expert, and the first of each further round.
        first = self.num_devices * sum(popularity[:: self.num_devices]) / sum(popularity)
        return (first + self.experts_per_token - 1) / self.experts_per_token
