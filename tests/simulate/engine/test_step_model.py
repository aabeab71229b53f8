"""The order of islands against all orders, and the job's own checks."""

from itertools import pairwise, permutations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.baselines.published.jaxpipe_on_dtfm import fastest_path
from jaxpipe.errors import PlanError
from jaxpipe.schedule import gpipe, interleaved, lower
from jaxpipe.simulate import Phase, StepModel
from tests.simulate.uniform import cluster


def costliest(cost: np.ndarray, order: tuple[int, ...]) -> float:
    """Return the cost of the costliest step of an order."""
    return max((float(cost[pair]) for pair in pairwise(order)), default=0.0)


@settings(deadline=None)
@given(st.integers(1, 6), st.integers(0, 10_000))
def test_no_order_has_a_cheaper_costliest_step(n: int, seed: int):
    cost = np.random.default_rng(seed).integers(1, 9, size=(n, n)).astype(float)
    cost += cost.T
    order = fastest_path(cost)
    assert sorted(order) == list(range(n))
    assert costliest(cost, order) == min(costliest(cost, each) for each in permutations(range(n)))


@pytest.mark.parametrize(
    ("placement", "phases", "seconds", "words"),
    [
        (((0, 0),), 2, 2, r"`placement` must name each device .* not \(\(0, 0\),\)"),
        (((0, 9),), 2, 2, r"not \(\(0, 9\),\)"),
        (
            ((0, 1), (2,)),
            2,
            3,
            r"`phases` must have a program for each of 1 ranks; a schedule has 2",
        ),
        (((0, 1),), 1, 2, r"`phases` must have a program for each of 2 ranks; a schedule has 1"),
        (((0, 1),), 2, 1, r"`forward_s` must have .* each of 2 stages of all replicas; it has 1"),
    ],
)
def test_a_job_that_does_not_fit_is_refused(
    placement: tuple[tuple[int, ...], ...], phases: int, seconds: int, words: str
):
    compute = gpipe(num_stages=phases, num_microbatches=1)
    with pytest.raises(PlanError, match=words):
        StepModel(
            cluster=cluster(4),
            placement=placement,
            phases=(Phase(schedule=lower(compute, tied=False, num_replicas=1)),),
            forward_s=(1.0,) * seconds,
            backward_s=(1.0,) * seconds,
        )


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"num_chunks": 1}, r"`phases` has 4 stages, `num_chunks` is 1 on 2 ranks"),
        ({"num_chunks": 3}, r"`forward_s` must have .* each of 6 stages of all replicas; it has 4"),
        (
            {"backward_weight_s": (1.0,) * 3},
            r"`backward_weight_s` must have .* each of 4 stages of all replicas; it has 3",
        ),
        ({"backward_weight_s": (1.0,) * 4}, r"`backward_weight_s` must be less than `backward_s`"),
    ],
)
def test_chunks_and_parts_that_do_not_fit_are_refused(more: dict[str, Any], words: str):
    compute = interleaved(num_stages=4, num_microbatches=2, num_chunks=2)
    fitting = {
        "cluster": cluster(2),
        "placement": ((0, 1),),
        "phases": (Phase(schedule=lower(compute, tied=False, num_replicas=1)),),
        "forward_s": (1.0,) * 4,
        "backward_s": (1.0,) * 4,
        "num_chunks": 2,
    }
    StepModel(**fitting)
    with pytest.raises(PlanError, match=words):
        StepModel(**{**fitting, **more})
