"""Layouts: their runs, what faces what, and what is refused."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.search.layout import Group, Layout, Run, facing, neighbours

GROUPS = st.builds(Group, st.sampled_from(["V100", "A100"]), st.just("a"), st.sampled_from([1, 2]))
STAGES = st.lists(st.builds(Run, GROUPS, st.integers(1, 4)), min_size=1, max_size=4).map(tuple)


@given(STAGES, STAGES)
def test_runs_face_each_other_as_their_replicas_do(one: tuple[Run, ...], other: tuple[Run, ...]):
    flat, opposite = ([g for g, count in stage for _ in range(count)] for stage in (one, other))
    pairs = [(a, b) for a, b, count in facing(one, other) for _ in range(count)]
    assert pairs == list(zip(flat, opposite, strict=False))


@given(STAGES)
def test_neighbours_are_those_of_the_replicas(stage: tuple[Run, ...]):
    flat = [group for group, count in stage for _ in range(count)]
    assert set(neighbours(stage)) == set(pairwise(flat))


def test_gpus_are_counted_by_type_and_zone():
    a, b = Group("V100", "a", 2), Group("V100", "b", 1)
    layout = Layout(cut=(1, 1), stages=((Run(a, 2), Run(b, 1)), (Run(b, 3),)), microbatch=1)
    assert layout.gpus() == {("V100", "a"): 4, ("V100", "b"): 4}
    assert (layout.num_stages, layout.num_replicas, layout.num_microbatches(10)) == (2, 3, 4)
    assert str(layout) == "microbatch 1: 1L 2xV100:2@a+1xV100:1@b | 1L 3xV100:1@b"


@pytest.mark.parametrize("stages", [(), ((Run(Group("V100", "a", 1), 0),),)])
def test_a_stage_without_replicas_is_refused(stages: tuple[tuple[Run, ...], ...]):
    with pytest.raises(PlanError, match="each stage of a layout has layers and replicas"):
        Layout(cut=(1,), stages=stages, microbatch=1)
