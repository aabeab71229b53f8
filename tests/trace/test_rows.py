"""Rows: spans that overlap never share one, and no row is wasted."""

from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.trace import Lane, Span
from jaxpipe.trace.rows import rows
from tests.trace.strategies import span, spans


def overlap(a: Span, b: Span) -> bool:
    return max(a.start_s, b.start_s) < min(a.end_s, b.end_s)


@given(members=st.lists(spans(num_ranks=1), max_size=12))
def test_spans_on_a_row_do_not_overlap_and_rows_are_few(members: list[Span]):
    placed = rows(members)
    assert len(placed) == len(members)
    for i in range(len(members)):
        for j in range(i):
            assert placed[i] != placed[j] or not overlap(members[i], members[j])
    lasting = [each for each in members if each.start_s < each.end_s]
    most_open = max(
        (sum(a.start_s <= b.start_s < a.end_s for a in lasting) for b in lasting), default=0
    )
    if len(lasting) == len(members):
        assert len(set(placed)) == most_open


def test_no_spans_need_no_rows():
    assert rows([]) == ()


def test_spans_that_touch_share_a_row():
    assert rows([span(Lane.SEND, 1.0, 2.0), span(Lane.SEND, 0.0, 1.0)]) == (0, 0)
