"""Receives that are posted ahead of the compute that needs them, as PyTorch's runtime does.

Its ranks are lowered in turn, an instruction each; the receive of a message is placed behind what
the receiver has so far when the message is sent::

    rank 0   F0 send    F1 send           F2 send ...
    rank 1   receive 0  F0   receive 1    B0   receive 2    F1 ...

Source: `_add_send_recv` in `torch/distributed/pipelining/schedules.py`, PyTorch 2.14.
"""

from collections import defaultdict
from collections.abc import Mapping

from jaxpipe.errors import PlanError
from jaxpipe.schedule.dataflow import message_ends
from jaxpipe.schedule.instruction import Instruction, Schedule, receive
from jaxpipe.schedule.virtual_stages import count_stages, holder


def early_receives(schedule: Schedule) -> tuple[Mapping[int, tuple[Instruction, ...]], ...]:
    """Return for each rank the receives that it posts after that many of its computes.

    Only the computes of `schedule` count; it may be lowered.

    >>> from jaxpipe.schedule.generators.gpipe import gpipe
    >>> first, last = early_receives(gpipe(num_stages=2, num_microbatches=2))
    >>> {count: [one.microbatch for one in posted] for count, posted in last.items()}
    {0: [0], 1: [1]}
    >>> {count: [one.microbatch for one in posted] for count, posted in first.items()}
    {2: [0], 3: [1]}

    Raises:
        PlanError: the schedule deadlocks.
    """
    programs = [[one for one in program if one.is_compute] for program in schedule]
    num_ranks, num_stages = len(schedule), count_stages(schedule)
    positions = [0] * num_ranks
    posted: set[tuple[int, Instruction]] = set()
    posts: list[defaultdict[int, list[Instruction]]] = [defaultdict(list) for _ in programs]
    while any(at < len(program) for at, program in zip(positions, programs, strict=True)):
        before = sum(positions)
        for rank, program in enumerate(programs):
            if positions[rank] == len(program):
                continue
            compute = program[positions[rank]]
            assert compute.microbatch is not None, compute
            source, destination = message_ends(compute, num_ranks=num_ranks, num_stages=num_stages)
            needed = None if source is None else receive(compute.stage, source, compute.microbatch)
            if needed is not None and (rank, needed) not in posted:
                continue
            positions[rank] += 1
            if destination is not None:
                peer = holder(destination, num_ranks=num_ranks)
                message = receive(destination, compute.stage, compute.microbatch)
                posts[peer][positions[peer]].append(message)
                posted.add((peer, message))
        if sum(positions) == before:
            raise PlanError("`schedule` deadlocks: no rank has what its next compute needs")
    return tuple({count: tuple(receives) for count, receives in of.items()} for of in posts)
