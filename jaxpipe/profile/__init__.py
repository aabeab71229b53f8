"""What it costs: the parts of a model, measured on the device at hand.

::

    StageFunctions ──► measure_part ──► PartCosts      seconds with spread, bytes, FLOPs
    GptConfig ──► measure_gpt ──► GptCosts ──► as_profile ──► what the planner and simulator take
"""

from jaxpipe.profile.config import MeasureConfig
from jaxpipe.profile.file import write_costs
from jaxpipe.profile.gpt import GptCosts, as_profile, measure_gpt
from jaxpipe.profile.part import TIMED, PartCosts, measure_part
from jaxpipe.profile.peak import matrix_peak_flops_per_s
from jaxpipe.profile.timing import Timing, time_calls

__all__ = [
    "TIMED",
    "GptCosts",
    "MeasureConfig",
    "PartCosts",
    "Timing",
    "as_profile",
    "matrix_peak_flops_per_s",
    "measure_gpt",
    "measure_part",
    "time_calls",
    "write_costs",
]
