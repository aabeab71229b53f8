"""In what order: instructions, generators of schedules, their lowering, check and drawing."""

from jaxpipe.schedule.all_reduce_kind import AllReduceKind
from jaxpipe.schedule.check import check
from jaxpipe.schedule.costs import Costs
from jaxpipe.schedule.csv_file import (
    parse_schedule,
    read_schedule,
    schedule_rows,
    schedule_text,
    write_schedule,
)
from jaxpipe.schedule.describe import describe
from jaxpipe.schedule.forward_only import forward_only
from jaxpipe.schedule.generate import ScheduleKind, generate
from jaxpipe.schedule.gpipe import gpipe
from jaxpipe.schedule.greedy import WeightPlacement, greedy
from jaxpipe.schedule.holding import count_stages, holder, stages_held
from jaxpipe.schedule.instruction import (
    Bucket,
    Instruction,
    Op,
    Program,
    Schedule,
    backward,
    backward_input,
    backward_weight,
    forward,
    receive,
    reduce,
    send,
    update,
)
from jaxpipe.schedule.interleaved import interleaved
from jaxpipe.schedule.live import peak_live
from jaxpipe.schedule.lower import lower
from jaxpipe.schedule.one_f_one_b import eager_one_f_one_b, one_f_one_b
from jaxpipe.schedule.render import render
from jaxpipe.schedule.size import check_chunks
from jaxpipe.schedule.sync_tree import SyncTree, leader, ranks, to_leaders
from jaxpipe.schedule.timetable import TimedInstruction, Timetable, timetable
from jaxpipe.schedule.zero_bubble import zb_h1, zb_h2

__all__ = [
    "AllReduceKind",
    "Bucket",
    "Costs",
    "Instruction",
    "Op",
    "Program",
    "Schedule",
    "ScheduleKind",
    "SyncTree",
    "TimedInstruction",
    "Timetable",
    "WeightPlacement",
    "backward",
    "backward_input",
    "backward_weight",
    "check",
    "check_chunks",
    "count_stages",
    "describe",
    "eager_one_f_one_b",
    "forward",
    "forward_only",
    "generate",
    "gpipe",
    "greedy",
    "holder",
    "interleaved",
    "leader",
    "lower",
    "one_f_one_b",
    "parse_schedule",
    "peak_live",
    "ranks",
    "read_schedule",
    "receive",
    "reduce",
    "render",
    "schedule_rows",
    "schedule_text",
    "send",
    "stages_held",
    "timetable",
    "to_leaders",
    "update",
    "write_schedule",
    "zb_h1",
    "zb_h2",
]
