"""Pipeline schedules: instructions, generators, lowering, static checks and drawings."""

from jaxpipe.schedule.check.check_schedule import check
from jaxpipe.schedule.csv_file import (
    parse_schedule,
    read_schedule,
    schedule_rows,
    schedule_text,
    write_schedule,
)
from jaxpipe.schedule.generators.durations import Costs
from jaxpipe.schedule.generators.gpipe import forward_only, gpipe
from jaxpipe.schedule.generators.greedy import WeightPlacement, greedy
from jaxpipe.schedule.generators.interleaved import interleaved
from jaxpipe.schedule.generators.one_f_one_b import eager_one_f_one_b, one_f_one_b
from jaxpipe.schedule.generators.registry import ScheduleKind, generate
from jaxpipe.schedule.generators.zero_bubble import zb_h1, zb_h2
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    backward,
    backward_input,
    backward_weight,
    describe,
    forward,
    gather,
    receive,
    reduce,
    send,
    update,
)
from jaxpipe.schedule.lower import lower
from jaxpipe.schedule.peak_live import deepest_first, peak_live, peak_live_of_kind
from jaxpipe.schedule.remat import Remat
from jaxpipe.schedule.render import legend, render
from jaxpipe.schedule.timetable import TimedInstruction, Timetable, timetable
from jaxpipe.schedule.virtual_stages import check_chunks, count_stages, holder, stages_held

__all__ = [
    "Bucket",
    "Costs",
    "Instruction",
    "Op",
    "Program",
    "Remat",
    "Schedule",
    "ScheduleKind",
    "TimedInstruction",
    "Timetable",
    "WeightPlacement",
    "backward",
    "backward_input",
    "backward_weight",
    "check",
    "check_chunks",
    "count_stages",
    "deepest_first",
    "describe",
    "eager_one_f_one_b",
    "forward",
    "forward_only",
    "gather",
    "generate",
    "gpipe",
    "greedy",
    "holder",
    "interleaved",
    "legend",
    "lower",
    "one_f_one_b",
    "parse_schedule",
    "peak_live",
    "peak_live_of_kind",
    "read_schedule",
    "receive",
    "reduce",
    "render",
    "schedule_rows",
    "schedule_text",
    "send",
    "stages_held",
    "timetable",
    "update",
    "write_schedule",
    "zb_h1",
    "zb_h2",
]
