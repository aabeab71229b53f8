"""Random legal schedules for the properties of this folder."""

from hypothesis import strategies as st

from jaxpipe.schedule import Schedule, ScheduleKind, forward_only, generate, lower

SIZES = st.integers(1, 6)


@st.composite
def warmups(draw: st.DrawFn, *, num_stages: int, num_microbatches: int) -> tuple[int, ...]:
    """Draw a legal warm-up: non-increasing, between 1 and the number of microbatches."""
    depths = draw(
        st.lists(st.integers(1, num_microbatches), min_size=num_stages, max_size=num_stages)
    )
    return tuple(sorted(depths, reverse=True))


@st.composite
def training_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a schedule of compute instructions of any kind, size and legal warm-up."""
    kind = draw(st.sampled_from(ScheduleKind))
    num_stages, num_microbatches = draw(sizes), draw(sizes)
    warmup = None
    if kind is ScheduleKind.EAGER_ONE_F_ONE_B and draw(st.booleans()):
        warmup = draw(warmups(num_stages=num_stages, num_microbatches=num_microbatches))
    return generate(kind, num_stages=num_stages, num_microbatches=num_microbatches, warmup=warmup)


@st.composite
def compute_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a schedule of compute instructions that trains or evaluates."""
    evaluation = st.builds(forward_only, num_stages=sizes, num_microbatches=sizes)
    return draw(st.one_of(training_schedules(sizes=sizes), evaluation))


@st.composite
def lowered_schedules(draw: st.DrawFn, *, sizes: st.SearchStrategy[int] = SIZES) -> Schedule:
    """Draw a lowered schedule; several replicas only where stages can disagree about them."""
    compute = draw(compute_schedules(sizes=sizes))
    num_replicas = draw(st.integers(1, 2)) if len(compute) > 1 else 1
    return lower(compute, tied=draw(st.booleans()), num_replicas=num_replicas)
