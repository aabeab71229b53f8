"""The record of an all-reduce: what planner, simulator and runtime know of it by its name."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from jaxpipe.collective.step import PhasesOf
from jaxpipe.collective.sync_tree import SyncTree


class ClosedForm(Enum):
    """The closed form of an all-reduce's seconds (`jaxpipe.plan.cost.collective_cost`)."""

    TREE = auto()
    RING = auto()
    SHARES = auto()
    ISLANDS = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllReduceFacts:
    """The facts of an all-reduce; the defaults suit any that divides an array into shares.

    `phases` returns the steps of each rank on one chunk, so that what all ranks share is derived
    once; it is None for the native all-reduce of a library, whose messages are not known. Without a
    `closed_form`, the seconds of its messages are added up one by one. A search considers it unless
    `is_searched` is false.
    """

    phases: Callable[[SyncTree], PhasesOf] | None
    closed_form: ClosedForm | None = None
    is_searched: bool = True
    is_ranked: bool = False
    """Its closed form holds where links differ, so that shapes of plans are ranked with it."""
    sends_whole_chunks: bool = False
    """Its messages are chunks of the array; else they are shares, a part for each rank."""
    has_far_messages: bool = False
    """Messages across the root of the tree are marked, and may be compressed."""
    fits_any_tree: bool = False
    """Any tree suits it: a planner searches for the fastest."""
    is_simulated_in_chunks: bool = True

    @property
    def is_native(self) -> bool:
        """Whether a library's own all-reduce sums, in messages that are not known."""
        return self.phases is None
