"""How many rows experts get under the routing of each system.

::

    sequence   slots of an expert per sequence: k x factor x tokens / experts; the mask of a
               sequence has tokens x experts x slots elements                        (GShard, HiDup)
    device     the same for all tokens of a device, whose mask grows with their square   (DeepSpeed)
    none       k rows for each token, without slots or mask; all wait for the fullest device, and
               for the fullest host's messages                                           (FastMoE)

Without a capacity, popularity decides. A router whose loads nothing balances has logits that differ
from expert to expert; ours are spread normally, so that popularities are log-normal. A second
choice is drawn like the first, among the other experts; further ones are spread evenly.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import ceil, exp, fsum
from statistics import NormalDist

from jaxpipe.baselines.autoshard.duplex.transformer_graph import ExpertSizes

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
        spread: standard deviation of the logarithm of experts' popularities; 0 if all are equal.
        whole_slots: whether the slots of a sequence are rounded up.
    """

    num_experts: int
    num_devices: int
    experts_per_token: int
    capacity_factor: float
    tokens: int
    sequences: int
    spread: float = 0.0
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
            capacity = ceil(round(wanted * self.capacity_factor * self.sequences, 9))
            capacity = max(capacity, _LEAST_SLOTS)
            slots = capacity / self.sequences
            return ExpertSizes(num_experts=count, slots=slots, mask_slots=count * capacity)
        return ExpertSizes(
            num_experts=count, slots=wanted, mask_slots=0, fullest=self.fullest(self.num_devices)
        )

    def fullest(self, groups: int) -> float:
        """Return the load of the fullest of `groups` equal groups of experts, over the mean.

        It has the most popular expert; its other experts are as popular as the others' mean.

        >>> load = RoutingLoad(num_experts=8, num_devices=8, experts_per_token=1,
        ...     capacity_factor=1.0, tokens=1, sequences=1, spread=2.0)
        >>> round(load.fullest(8), 2), load.fullest(1)  # 66 % of the tokens; and all of them
        (5.25, 1.0)
        """
        most = max(self._shares())
        others = (1.0 - most) / max(1, self.num_experts - 1)
        return groups * (most + (self.num_experts / groups - 1) * others)

    def _shares(self) -> list[float]:
        """Return each expert's part of all choices."""
        count, normal = self.num_experts, NormalDist()
        weights = [
            exp(self.spread * normal.inv_cdf((number + 0.5) / count)) for number in range(count)
        ]
        total = fsum(weights)
        first = [weight / total for weight in weights]
        if self.experts_per_token == 1 or count == 1:
            return first
        # After j, which has the part p_j of the first choices, i has p_i / (1 - p_j) of the second.
        after = fsum(part / (1 - part) for part in first)
        second = [part * (after - part / (1 - part)) for part in first]
        even = (self.experts_per_token - 2) / count
        return [
            (one + two + even) / self.experts_per_token
            for one, two in zip(first, second, strict=True)
        ]
