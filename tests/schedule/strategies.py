"""Random legal schedules for the properties of this folder."""

from hypothesis import strategies as st

from jaxpipe.schedule import (
    Instruction,
    Op,
    Program,
    Schedule,
    ScheduleKind,
    backward_input,
    backward_weight,
    forward_only,
    generate,
    lower,
    timetable,
)

SIZES = st.integers(1, 6)
WHOLE_KINDS = [
    kind for kind in ScheduleKind if not kind.facts.splits_backward and not kind.facts.takes_chunks
]


@st.composite
def warmups(draw: st.DrawFn, *, num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Draw a legal warm-up: non-increasing, between 1 and the number of microbatches."""
    depths = draw(
        st.lists(st.integers(1, num_microbatches), min_size=num_stages, max_size=num_stages)
    )
    return tuple(sorted(depths, reverse=True))


@st.composite
def whole_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a schedule of whole backwards and one chunk, of any size and legal warm-up."""
    kind = draw(st.sampled_from(WHOLE_KINDS))
    num_stages, num_microbatches = draw(sizes), draw(sizes)
    warmup = None
    if kind.facts.takes_warmup and draw(st.booleans()):
        warmup = draw(warmups(num_stages=num_stages, num_microbatches=num_microbatches))
    return generate(kind, num_stages=num_stages, num_microbatches=num_microbatches, warmup=warmup)


@st.composite
def named_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a schedule of any kind and size; of the interleaved ones, which are large, few."""
    kind = draw(st.sampled_from(ScheduleKind))
    num_ranks, num_microbatches = draw(sizes), draw(sizes)
    if not kind.facts.takes_chunks:
        return generate(kind, num_stages=num_ranks, num_microbatches=num_microbatches)
    num_ranks, num_chunks = min(num_ranks, 3), draw(st.integers(1, 2))
    return generate(
        kind,
        num_stages=num_ranks * num_chunks,
        num_microbatches=num_ranks * draw(st.integers(1, 2)),
        num_chunks=num_chunks,
    )


@st.composite
def split_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a training schedule some of whose backwards are split, their halves wide apart."""
    schedule = draw(whole_schedules(sizes=sizes))
    return tuple(_split(draw, program) for program in schedule)


def _split(draw: st.DrawFn, program: Program) -> Program:
    split: list[Instruction] = []
    late: list[Instruction] = []
    for each in program:
        if each.op is not Op.BACKWARD or draw(st.booleans()):
            split.append(each)
            continue
        assert each.microbatch is not None
        split.append(backward_input(each.stage, each.microbatch))
        late.append(backward_weight(each.stage, each.microbatch))
        if draw(st.booleans()):
            split += late
            late.clear()
    return (*split, *late)


@st.composite
def chunked_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a schedule whose stages ranks with one to three chunks hold.

    Each rank computes in the order in which the stages would, had each a rank of its own.
    """
    num_chunks = draw(st.integers(1, 3))
    evaluation = st.builds(forward_only, num_stages=sizes, num_microbatches=sizes)
    schedule = draw(st.one_of(split_schedules(sizes=sizes), evaluation))
    num_ranks = len(schedule) // num_chunks
    if num_chunks * num_ranks != len(schedule) or num_chunks == 1:
        return schedule
    seconds = (1.0,) * len(schedule)
    timed = timetable(schedule, forward_s=seconds, backward_s=seconds)
    return tuple(
        tuple(
            each.instruction
            for each in sorted(
                (each for stage in timed.programs[rank::num_ranks] for each in stage),
                key=lambda each: each.start_s,
            )
        )
        for rank in range(num_ranks)
    )


@st.composite
def compute_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a schedule of compute instructions that trains or evaluates."""
    return draw(st.one_of(named_schedules(sizes=sizes), chunked_schedules(sizes=sizes)))


@st.composite
def lowered_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a lowered schedule; several replicas only where stages can disagree about them."""
    compute = draw(compute_schedules(sizes=sizes))
    if len(compute) == 1:
        return lower(compute, tied=False, num_replicas=1)
    return lower(compute, tied=draw(st.booleans()), num_replicas=draw(st.integers(1, 2)))
