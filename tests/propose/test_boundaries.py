"""`plan.boundaries`: a codec for each boundary between stages, as the user states them."""

from typing import Any

import pytest

from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, cluster_from, config_of_settings
from jaxpipe.errors import UserError
from jaxpipe.plan import Plan
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.proposal import propose
from jaxpipe.propose.resolve import plan_from
from jaxpipe.propose.searched_plan import searched_plan
from jaxpipe.simulate import plan_step_s

BOUNDARIES = (CodecKind.INT8, CodecKind.NONE)


def config_of(**fields: Any) -> Config:
    values = {"cluster": "two-region", "boundaries": "['int8', 'none']", **fields}
    section = [f"plan.{name}={value}" for name, value in values.items()]
    return config_of_settings(
        ["model.preset=tiny", "train.batch=8", "paced.tflops=0.01", "comm.boundary=bf16", *section]
    )


def codecs(plan: Plan) -> set[tuple[CodecKind, ...]]:
    return {pipeline.codecs for pipeline in plan.pipelines}


def test_a_decided_plan_has_them_in_place_of_the_codec_of_the_run() -> None:
    fields = {"stages": 3, "replicas": 1, "microbatch": 2, "schedule": "1f1b"}
    assert codecs(plan_from(config_of(**fields))) == {BOUNDARIES}
    assert codecs(plan_from(config_of(**fields, boundaries="free"))) == {()}


@pytest.mark.parametrize("stages", [{}, {"stages": 3}])
def test_a_search_keeps_them_and_values_plans_with_them(stages: dict[str, int]) -> None:
    config = config_of(**stages)
    cluster = cluster_from(config)
    proposal = propose(config, SearchOptions(budget=0.5))
    assert codecs(proposal.plan) == {BOUNDARIES}
    assert proposal.split.step_s >= proposal.bound.seconds
    found = searched_plan(config, cluster, seconds=0.3)
    assert codecs(found.plan) == {BOUNDARIES}
    assert found.plan.num_chunks == 1
    conditions = conditions_of(config, cluster, remat=found.plan.remat)
    assert found.step_s == pytest.approx(plan_step_s(found.plan, conditions), rel=0.05)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (
            {"stages": 2, "replicas": 1, "microbatch": 2, "schedule": "1f1b"},
            r"`plan.boundaries` \(int8, none\) must have a codec for each of the 1 boundaries",
        ),
        (
            {"stages": 4, "chunks": 2, "replicas": 1, "microbatch": 1}
            | {"schedule": "interleaved-1f1b", "boundaries": "['none', 'none', 'none']"},
            r"`plan.boundaries` .* must be the same at all boundaries with several stages",
        ),
        (
            {"boundaries": "['top_k', 'none']", "stages": 3, "replicas": 1, "microbatch": 2}
            | {"schedule": "1f1b"},
            "`plan.boundaries` must not have top_k",
        ),
        ({"codecs": "safe"}, r"`plan.boundaries` \(int8, none\) must be left out with `codecs`"),
        ({"boundaries": "[]"}, "`plan.boundaries` must not be empty"),
    ],
)
def test_what_does_not_fit_the_stages_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        plan_from(config_of(**fields))


@pytest.mark.parametrize("fields", [{"stages": 2}, {"cut": "[1, 3]"}, {"stages": 4}])
def test_another_number_than_that_of_the_stages_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UserError, match=r"`plan.boundaries` \(int8, none\) must have a codec for"):
        config_of(**fields)
