"""Emulated, paced: real ranks and messages, with computes that wait and links that delay."""

from jaxpipe.paced.execute import Outcome, execute
from jaxpipe.paced.outer_steps import PlannedOuter, planned_outer
from jaxpipe.paced.reduction import PlannedAllReduces, planned_all_reduces
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.timing_error import TimingError

__all__ = [
    "Outcome",
    "PlannedAllReduces",
    "PlannedOuter",
    "Scale",
    "TimingError",
    "execute",
    "planned_all_reduces",
    "planned_outer",
]
