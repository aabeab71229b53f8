"""Sync trees for the properties of all-reduces."""

from hypothesis import strategies as st

from jaxpipe.collective.sync_tree import SyncTree


@st.composite
def sync_trees(draw: st.DrawFn, *, most_ranks: int = 6) -> SyncTree:
    """Any nesting of the ranks 0 .. n - 1, in any order."""
    order = draw(st.permutations(range(draw(st.integers(1, most_ranks)))))
    forest: list[SyncTree] = list(order)
    while len(forest) > 1 and draw(st.booleans()):
        start = draw(st.integers(0, len(forest) - 1))
        end = draw(st.integers(start + 1, len(forest)))
        forest[start:end] = [tuple(forest[start:end])]
    return forest[0] if len(forest) == 1 else tuple(forest)
