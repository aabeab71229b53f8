"""The settings of the comparison: who trains, and who decided where."""

from enum import StrEnum


class Setting(StrEnum):
    """A system with a placement; the letter is the one that the reports use."""

    MEGATRON_OPTIMAL = "a megatron-optimal"
    """The best of Megatron's layouts: 8 stages, 4 x 2, 2 x 4 or 8 parts of each tensor."""
    MEGATRON_P8 = "b megatron-p8"
    """Megatron's pipeline of 8 stages."""
    OURS = "c ours"
    """jaxpipe, with the plan that its planner found."""
    OURS_UNSCHEDULED = "d ours-unscheduled"
    """The same plan, ranks placed at random, sums in the order of ranks."""
    DTFM = "e dtfm"
    """DT-FM's runtime with its scheduler's placement."""
    DTFM_UNSCHEDULED = "e dtfm-unscheduled"
    """DT-FM's runtime, ranks placed at random."""
    ZERO3 = "f zero-s3"
    """ZeRO-3 over all devices."""

    @property
    def letter(self) -> str:
        """The letter.

        >>> Setting.OURS.letter
        'c'
        """
        return self.value[0]
