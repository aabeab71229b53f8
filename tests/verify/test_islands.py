"""Islands and their outer steps are verified against whole tensors on one device."""

from typing import Any
from unittest.mock import patch

import pytest

from jaxpipe import topo
from jaxpipe.config import config_from
from jaxpipe.outer import OuterConfig
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.runtime.outer import outer_loop
from jaxpipe.runtime.stage.compile_once import CompileOnce
from jaxpipe.verify.certificate import compared, reference
from jaxpipe.verify.differences import Subject
from jaxpipe.verify.smaller_plan import shrunk
from jaxpipe.verify.stand_in import form_of
from tests.config.chosen_settings import NOWHERE, Example, checked
from tests.runtime.training import tiny_tree

_LOOPS = {
    "delayed": {"every": 6, "fragments": 2, "delay": 2, "local_fraction": 0.5},
    "eager": {"every": 2, "eager": True},
}


def _loop(name: str) -> Any:
    return checked(Example({"outer": {"islands": 2, **_LOOPS[name]}, "train": {"steps": 6}}))


@pytest.fixture(scope="module")
def compiler() -> CompileOnce:
    return CompileOnce()


@pytest.mark.slow
@pytest.mark.parametrize("name", _LOOPS)
def test_islands_are_equal_to_one_device_and_an_error_of_their_steps_is_found(
    name: str, compiler: CompileOnce
):
    config, plan = _loop(name)
    expected = reference(config, plan, form_of(config))
    certificate = compared(expected, compiler=compiler)
    assert certificate.is_proved, "\n".join(certificate.lines())
    # Nesterov momentum that is forgotten from one outer step to the next.
    step = outer_loop.outer_step

    def forgetful(state: Any, gradient: Any, optimizer: Any) -> Any:
        after = step(state, gradient, optimizer)
        return type(after)(anchor=after.anchor, momentum=0 * after.momentum)

    with patch.object(outer_loop, "outer_step", forgetful):
        wrong = compared(expected, compiler=compiler).wrong
    assert wrong[0].subject is Subject.MOMENTS or wrong[0].step >= expected.job.outer.every


@pytest.mark.slow
@pytest.mark.parametrize(
    "part", [{"lora": {"rank": 2}}, {"train": {"frozen": ["blocks.0.*", "embed.*"], "steps": 6}}]
)
def test_islands_that_train_a_part_are_equal_to_one_device(part: Any, compiler: CompileOnce):
    outer = {"islands": 2, **_LOOPS["delayed"]}
    config, plan = checked(Example({"outer": outer, "train": {"steps": 6}, **part}))
    certificate = compared(reference(config, plan, form_of(config)), compiler=compiler)
    assert certificate.is_proved, "\n".join(certificate.lines())


def test_two_islands_remain_with_the_same_replicas():
    cluster = topo.load("case5-worldwide")
    tree = tiny_tree(
        NOWHERE,
        NOWHERE,
        outer={"islands": 4, "every": 30, "fragments": 3, "delay": 4},
        plan={"cluster": cluster.name, "replicas": 16},
        train={"batch": 32, "steps": 60},
    )
    config = config_from(tree)
    plan = decided_plan(config, cluster)
    small = shrunk(config, plan)
    assert small.plan.num_replicas == 6
    assert sorted({plan.replica(rank) for rank in small.ranks}) == [0, 1, 2, 4, 5, 6]
    assert small.config.outer == OuterConfig(islands=2, every=4, fragments=2, delay=1)
    assert small.config.train.steps == 8
    assert "islands 4 -> 2" in small.sizes
