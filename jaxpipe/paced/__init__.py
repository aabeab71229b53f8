"""Emulated, paced: real ranks and messages, with computes that wait and links that delay."""

from jaxpipe.paced.execute import Outcome, execute
from jaxpipe.paced.reduction import PlannedSums, planned_sums
from jaxpipe.paced.scale import Scale
from jaxpipe.paced.timing_error import Lateness

__all__ = ["Lateness", "Outcome", "PlannedSums", "Scale", "execute", "planned_sums"]
