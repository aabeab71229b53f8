"""A cut gives every layer to one stage, in order, and every stage a layer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.plan import check_cut, even_cut, layers_of


@given(st.data())
def test_even_cuts_cover_the_layers_and_differ_by_one(data: st.DataObject):
    num_stages = data.draw(st.integers(1, 40))
    num_layers = data.draw(st.integers(num_stages, 200))
    cut = even_cut(num_layers=num_layers, num_stages=num_stages)
    check_cut(cut, num_layers=num_layers, num_stages=num_stages)
    assert max(cut) - min(cut) <= 1
    held = [layer for stage in range(num_stages) for layer in layers_of(cut, stage)]
    assert held == list(range(num_layers))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PlanError, match=r"`plan\.stages` is 4 but the model has 3 layers; use at"):
        even_cut(num_layers=3, num_stages=4)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ((1, 2), "it has 2, `plan.stages` is 3; give 3 numbers"),
        ((4, 0, 1), r"at least one layer: `plan.cut` is \[4, 0, 1\]"),
        ((1, 1, 1), r"\[1, 1, 1\] adds up to 3, the model has 5 layers"),
    ],
)
def test_cuts_that_do_not_fit_are_refused(cut: tuple[int, ...], words: str):
    with pytest.raises(PlanError, match=words):
        check_cut(cut, num_layers=5, num_stages=3)
