"""Rows for spans that overlap: several sends may be on their way at once, boxes may not."""

from collections.abc import Sequence

from jaxpipe.trace.span import Span


def rows(spans: Sequence[Span]) -> tuple[int, ...]:
    """Return for each span the row on which no other of them overlaps it.

    A span takes the first row that is free when it starts, so there are as many rows as spans are
    ever open at once::

        row 0   ├─ a ──┤   ├── d ──┤
        row 1      ├─ b ─┤
        row 2        ├── c ──┤

    Cost: the number of spans times that of rows.
    """
    placed = [0] * len(spans)
    ends_s: list[float] = []
    for index in sorted(range(len(spans)), key=lambda i: (spans[i].start_s, spans[i].end_s)):
        free = (row for row, end_s in enumerate(ends_s) if end_s <= spans[index].start_s)
        row = next(free, len(ends_s))
        ends_s[row : row + 1] = [spans[index].end_s]
        placed[index] = row
    return tuple(placed)
