"""The chosen rule is the library's ZeRO-3; the choice looks only at the cases that it may see."""

import pytest

from experiments.dtfm_iteration_time.zero3_rules import CHOSEN, RULES, best, seconds
from jaxpipe import topo
from jaxpipe.baselines.published.published_systems import system_step
from jaxpipe.baselines.published.workload import Workload
from jaxpipe.baselines.systems import System
from jaxpipe.simulate import dtfm_constants, simulate, step_seconds


@pytest.mark.parametrize("cluster", ["case1-datacenter", "case4-regional"])
@pytest.mark.parametrize("layers", [16, 40])
def test_the_chosen_rule_is_that_of_the_library(cluster: str, layers: int):
    step = system_step(
        System.ZERO3,
        topo.load(cluster),
        workload=Workload(num_layers=layers, batch=512),
        constants=dtfm_constants(),
    )
    expected = step_seconds(simulate(step))
    assert seconds(CHOSEN, cluster, layers=layers, batch=512) == pytest.approx(expected)


def test_a_case_that_is_left_out_does_not_count():
    first, second = RULES[:2]
    errors = {first: {1: 0.1, 2: 0.0}, second: {1: 0.0, 2: 9.0}}
    assert best(errors, [1, 2]) == first
    assert best(errors, [1]) == second
