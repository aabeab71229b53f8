"""Cuts cover the layers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.plan import check_partition, even_partition, layers_of


@given(st.integers(1, 20), st.integers(0, 80))
def test_an_even_cut_covers_the_layers(num_stages: int, spare: int):
    num_layers = num_stages + spare
    cut = even_partition(num_layers=num_layers, num_stages=num_stages)
    check_partition(cut, num_layers=num_layers, num_stages=num_stages)
    assert max(cut) - min(cut) <= 1
    assert cut == tuple(sorted(cut, reverse=True))
    held = [layer for stage in range(num_stages) for layer in layers_of(cut, stage)]
    assert held == list(range(num_layers))


def test_more_stages_than_layers_are_refused():
    with pytest.raises(PlanError, match=r"`plan.stages` .3. must be at most 2"):
        even_partition(num_layers=2, num_stages=3)


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ((2, 2), "one number for each stage: it has 2, `plan.stages` is 3; give 3 numbers"),
        ((4, 0, 0), r"`plan.cut` \[4, 0, 0\] must have at least one layer"),
        ((1, 1, 1), r"\[1, 1, 1\] adds up to 3, the model has 4 layers"),
    ],
)
def test_wrong_cuts_are_refused(cut: tuple[int, ...], words: str):
    with pytest.raises(PlanError, match=words):
        check_partition(cut, num_layers=4, num_stages=3)
