"""A field of `[plan]` that is not set is searched; one that is set is kept."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind
from jaxpipe.config import Config, cluster_from, config_from
from jaxpipe.errors import PlanError
from jaxpipe.plan import even_partition
from jaxpipe.propose.conditions import conditions_of
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.resolve import plan_from, resolve
from jaxpipe.propose.searched_plan import searched_plan
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.simulate import plan_step_s

PLAN: Mapping[str, Any] = {
    "stages": 2,
    "replicas": 2,
    "microbatch": 2,
    "schedule": "1f1b",
    "all_reduce": "ring",
    "cut": [1, 3],
}


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep plans in a cache of the test's own, away from the user's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def config_of(plan: Mapping[str, Any], **sections: Mapping[str, Any]) -> Config:
    return config_from(
        {
            "run": {"folder": "run"},
            "data": {"folder": "data"},
            "model": {"preset": "tiny", **sections.get("model", {})},
            "plan": {"cluster": "two-region", "search_s": 0.3, **plan},
            "train": {"batch": 8, **sections.get("train", {})},
            "paced": {"tflops": 0.01},
        }
    )


@settings(max_examples=12)
@given(st.sets(st.sampled_from(sorted(PLAN))))
def test_what_is_set_is_kept(fields: set[str]):
    section = {name: PLAN[name] for name in fields}
    # A cut is one of as many stages.
    if "cut" in section:
        section["stages"] = 2
    plan = plan_from(config_of(section))
    for name, value in section.items():
        attribute = {"stages": "num_stages", "replicas": "num_replicas"}.get(name, name)
        kept = getattr(plan, attribute)
        assert (list(kept) if name == "cut" else kept) == value
    assert plan.batch == 8
    assert plan.remat is Remat.NONE


def test_nothing_is_searched_where_all_is_set(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is free")

    monkeypatch.setattr("jaxpipe.propose.resolve.searched_plan", refuse)
    resolution = resolve(config_of(PLAN))
    assert resolution.lines == ()
    assert resolution.plan.cut == (1, 3)


def test_a_search_is_kept_by_content(monkeypatch: pytest.MonkeyPatch):
    config = config_of({})
    cluster = cluster_from(config)
    first = searched_plan(config, cluster)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("it is kept")

    monkeypatch.setattr("jaxpipe.propose.searched_plan.search", refuse)
    assert searched_plan(config, cluster) == first
    with pytest.raises(AssertionError, match="it is kept"):
        searched_plan(replace(config, train=replace(config.train, batch=16)), cluster)


def test_a_searched_plan_is_no_slower_than_the_one_without_a_search():
    searched = searched_plan(config_of({}), cluster_from(config_of({})))
    assert searched.default_s is not None
    assert searched.step_s <= searched.default_s * (1 + 1e-9)
    chosen, default = searched.lines[:2]
    assert "s a step (simulated; " in chosen
    assert default.startswith(
        "without a search (2 stages x 2 replicas, even cut, microbatch 1, 1f1b)"
    )


@pytest.mark.parametrize(
    ("section", "shape"),
    [
        ({"replicas": 1}, "2 stages x 1 replica"),
        ({"replicas": 4}, "1 stage x 4 replicas"),
        ({"stages": 4}, "4 stages x 1 replica"),
    ],
)
def test_the_plan_without_a_search_has_what_is_set(section: dict[str, Any], shape: str):
    config = config_of(section)
    searched = searched_plan(config, cluster_from(config))
    assert searched.default_name.startswith(f"without a search ({shape}, ")


def test_the_cut_is_the_one_by_cost():
    # The head of a vocabulary of 65,536 is more work than the four layers together.
    config = config_of({**PLAN, "cut": [2, 2]}, model={"vocabulary": 65536})
    free = replace(config, plan=replace(config.plan, cut=None))
    cluster = cluster_from(config)
    by_cost, even = decided_plan(free, cluster), decided_plan(config, cluster)
    assert even.cut == even_partition(num_layers=4, num_stages=2)
    assert by_cost.cut == (3, 1)
    conditions = conditions_of(config)
    assert plan_step_s(by_cost, conditions) < plan_step_s(even, conditions)


def test_a_launcher_of_the_user_decides_the_ranks():
    for num_ranks in (1, 2, 3, 4):
        assert resolve(config_of({}), num_ranks=num_ranks).plan.num_ranks == num_ranks


@pytest.mark.parametrize(
    ("section", "ranks"),
    [({"cuts": ((2, 2), (4,)), "shares": (5, 3)}, 3), ({"shares": (6, 2), "stages": 1}, 2)],
)
def test_described_replicas_leave_schedule_and_microbatch_free(section: dict[str, Any], ranks: int):
    plan = plan_from(config_of({**section, "replicas": 2}))
    assert plan.num_ranks == ranks
    assert [pipeline.num_samples for pipeline in plan.pipelines] == list(section["shares"])


@pytest.mark.parametrize(
    ("section", "batch", "words"),
    [
        (
            {"stages": 9},
            8,
            r"`plan.stages` x `plan.replicas` = 9 x 1 = 9 ranks need as many devices",
        ),
        (
            {"schedule": ScheduleKind.INTERLEAVED, "chunks": 2, "stages": 4},
            3,
            r"`train.batch` \(3\) must be a multiple of replicas x ranks x microbatch .* 2 or 4",
        ),
        ({"microbatch": 3}, 8, r"`train.batch` must be divisible by .* `plan.microbatch` = 1 x 3"),
        (
            {"warmup": (0, 1), "stages": 2},
            8,
            "`plan.warmup` must be left out for the schedule 1f1b",
        ),
        ({"chunks": 3, "stages": 1}, 8, r"`plan.stages` \(1\) must be a multiple of `plan.chunks`"),
        (
            {"all_reduce": AllReduceKind.LIBRARY},
            8,
            r"`plan.all_reduce` \(library\) cannot be searched",
        ),
    ],
)
def test_what_fits_no_plan_is_refused_by_field(section: dict[str, Any], batch: int, words: str):
    with pytest.raises(PlanError, match=words):
        plan_from(config_of(section, train={"batch": batch}))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"file": "none.toml"}, "`plan.file`: cannot read the plan none.toml: No such file"),
        (
            {"stages": 1, "replicas": 1, "microbatch": 1, "schedule_file": "none.csv"},
            "`plan.schedule_file`: cannot read the schedule none.csv: No such file",
        ),
    ],
)
def test_files_are_refused_by_their_field(section: dict[str, Any], words: str):
    with pytest.raises(PlanError, match=words):
        plan_from(config_of(section))


def test_an_outer_loop_has_as_many_islands(tmp_path: Path):
    config = config_of({})
    config = replace(config, outer=replace(config.outer, islands=2, every=2))
    assert plan_from(config).num_replicas % 2 == 0


def test_a_plan_is_executed_with_its_rematerialisation(tmp_path: Path):
    config = config_of({}, train={"batch": 8, "remat": "full"})
    plan = plan_from(config)
    assert plan.remat is Remat.FULL
    assert isinstance(plan.schedule, ScheduleKind | tuple)
