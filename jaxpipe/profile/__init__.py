"""Profiles: measured costs of the parts of a model on this device.

::

    StageFunctions ──► measure_part ──► PartCosts      seconds with spread, bytes, FLOPs
    GptConfig ──► measure_gpt ──► GptCosts ──► as_profile ──► Profile of planner and simulator
"""

from jaxpipe.profile.gpt_parts import (
    GptCosts,
    as_profile,
    blocks_in_a_row,
    measure_gpt,
    write_costs,
)
from jaxpipe.profile.measure_config import MeasureConfig
from jaxpipe.profile.part import TIMED, PartCosts, measure_part
from jaxpipe.profile.timing import Timing, matrix_peak_flops_per_s, time_calls, time_in_turn

__all__ = [
    "TIMED",
    "GptCosts",
    "MeasureConfig",
    "PartCosts",
    "Timing",
    "as_profile",
    "blocks_in_a_row",
    "matrix_peak_flops_per_s",
    "measure_gpt",
    "measure_part",
    "time_calls",
    "time_in_turn",
    "write_costs",
]
