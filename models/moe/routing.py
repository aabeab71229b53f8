"""The options of a mixture of experts, and how many tokens an expert takes; needs no jax."""

import math
from dataclasses import dataclass
from enum import StrEnum


class Dispatch(StrEnum):
    """How tokens are brought to their experts."""

    EINSUM = "einsum"
    """Products with one-hot masks: a fixed number of slots per expert and sequence."""
    RAGGED = "ragged"
    """Tokens sorted by expert, and ragged products: no capacity, so that no token is dropped."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Routing:
    """Describe how tokens choose experts.

    A routing group is one sequence: its tokens compete for the slots of each expert, tokens of
    other sequences do not. So the output for a sequence does not depend on the batch around it.
    With `groups`, the batch is divided into that many groups of consecutive sequences instead, such
    as one for each device.

    Args:
        experts: number of experts of a layer.
        experts_per_token: how many experts process a token: 1 as in Switch Transformer, 2 as in
            GShard.
        capacity_factor: slots of all experts together, per token of the group.
        normalised_gates: whether the gates of a token sum to 1, as in GShard; else they are the
            probabilities of its experts.
        balance_loss: weight of the load-balance loss.
        z_loss: weight of the router's z-loss.
        dispatch: how tokens are brought to their experts.
        groups: routing groups of a batch; 0 if each sequence is one.

    Raises:
        ValueError: there are fewer experts than a token takes, or a weight is out of its range.

    >>> switch = Routing(experts=8)
    >>> switch.capacity(64), switch.capacity(3)
    (10, 1)
    """

    experts: int
    experts_per_token: int = 1
    capacity_factor: float = 1.25
    normalised_gates: bool = False
    balance_loss: float = 0.0
    z_loss: float = 0.0
    dispatch: Dispatch = Dispatch.EINSUM
    groups: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.experts_per_token <= self.experts:
            raise ValueError(
                f"`experts_per_token` must be at least 1 and at most `experts`, {self.experts}, "
                f"not {self.experts_per_token}"
            )
        if not 0 < self.capacity_factor < math.inf:
            raise ValueError(f"`capacity_factor` must be above 0, not {self.capacity_factor}")
        if self.groups < 0:
            raise ValueError(f"`groups` must be at least 0, not {self.groups}")
        for name in ("balance_loss", "z_loss"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"`{name}` must be at least 0, not {getattr(self, name)}")

    @property
    def is_by_token(self) -> bool:
        """Whether the output for a token, and the loss, depend on no other token.

        >>> Routing(experts=2, dispatch=Dispatch.RAGGED).is_by_token, Routing(experts=2).is_by_token
        (True, False)
        """
        return self.dispatch is Dispatch.RAGGED and not self.has_loss

    @property
    def has_loss(self) -> bool:
        """Whether the layer adds to the loss."""
        return self.balance_loss > 0 or self.z_loss > 0

    def grouped(self, batch: int, sequence: int) -> tuple[int, int]:
        """Return the number of routing groups of a batch, and the tokens of each.

        >>> Routing(experts=2).grouped(6, 4), Routing(experts=2, groups=2).grouped(6, 4)
        ((6, 4), (2, 12))

        Raises:
            ValueError: the sequences do not divide into the groups.
        """
        if not self.groups:
            return batch, sequence
        if batch % self.groups:
            raise ValueError(
                f"`routing_groups` must divide the batch: {self.groups} groups of {batch} sequences"
            )
        return self.groups, batch // self.groups * sequence

    def capacity(self, tokens: int) -> int:
        """Return the slots of one expert for a routing group of `tokens`: at least one.

        Source: Fedus et al. 2021, "Switch Transformers", equation 3, rounded up.
        """
        # An expert takes a token once: more slots than tokens would stay empty.
        factor = min(self.capacity_factor, self.experts)
        # Rounded first: 10 tokens x 1.1 / 11 experts is 1 slot, in floating point a little more.
        return max(math.ceil(round(tokens * factor / self.experts, 9)), 1)
