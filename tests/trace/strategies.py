"""Random traces, and spans in few words, for the tests of this folder."""

from hypothesis import strategies as st

from jaxpipe.trace import Lane, Span, Trace, Truth

SECONDS = st.floats(0.0, 1e6, allow_subnormal=False)


def span(
    lane: Lane,
    start_s: float,
    end_s: float,
    *,
    rank: int = 0,
    step: int = 0,
    name: str = "",
    microbatch: int | None = None,
    peer: int | None = None,
) -> Span:
    return Span(
        rank=rank,
        lane=lane,
        name=name or lane.value,
        start_s=start_s,
        end_s=end_s,
        step=step,
        stage=rank,
        microbatch=microbatch,
        peer=peer,
    )


@st.composite
def spans(draw: st.DrawFn, *, num_ranks: int) -> Span:
    start_s, end_s = sorted((draw(SECONDS), draw(SECONDS)))
    return Span(
        rank=draw(st.integers(0, num_ranks - 1)),
        lane=draw(st.sampled_from(Lane)),
        name=draw(st.sampled_from(["forward", "backward", "reduce stage", "naïve 7"])),
        start_s=start_s,
        end_s=end_s,
        step=draw(st.integers(0, 2)),
        stage=draw(st.integers(0, 9)),
        microbatch=draw(st.none() | st.integers(0, 3)),
        peer=draw(st.none() | st.integers(0, num_ranks - 1)),
        num_bytes=draw(st.integers(0, 2**50)),
    )


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    num_ranks = draw(st.integers(1, 4))
    names = draw(st.lists(st.text(), min_size=num_ranks, max_size=num_ranks))
    return Trace(
        truth=draw(st.sampled_from(Truth)),
        rank_names=tuple(names),
        spans=tuple(draw(st.lists(spans(num_ranks=num_ranks), max_size=12))),
    )
