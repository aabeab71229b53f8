"""`jaxpipe published list` and `plan`, called as from a terminal."""

import json
from pathlib import Path

import pytest

from jaxpipe.baselines.systems import SYSTEMS, System, Way, systems_with
from jaxpipe.cli.main import main
from jaxpipe.plan import read_plan
from jaxpipe.topo import load

_CLUSTER = "homogeneous:hosts=1,devices=8"
_GIVEN = ("--cluster", _CLUSTER, "--model", "gpt-xl-24", "--batch", "64", "--json")


def test_the_list_has_every_system_with_its_ways(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["published", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert set(rows) == {system.value for system in System}
    assert all(row["ways"] for row in rows.values())
    assert main(["published", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(facts.about in printed and facts.paper in printed for facts in SYSTEMS.values())


@pytest.mark.parametrize("system", systems_with(Way.PLAN))
def test_every_system_that_is_planned_has_a_plan(
    system: System, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "plan.toml"
    assert main(["published", "plan", system, *_GIVEN, "-o", str(out)]) == 0
    answer = json.loads(capsys.readouterr().out)
    plan = read_plan(out, load(_CLUSTER))
    assert (plan.num_stages, plan.num_replicas) == (answer["stages"], answer["replicas"])
    assert (plan.batch, answer["truth"]) == (64, "simulated")
    assert answer["step_s"] > 0
    assert ("alpa_seconds" in answer) == (system is System.ALPA)


@pytest.mark.parametrize(
    ("system", "words"),
    [
        ("megatron-p9", "`SYSTEM` must be one of alpa, megatron-p8, "),
        ("hidup", "not 'hidup'; did you mean"),
    ],
)
def test_a_system_without_a_plan_is_refused(
    system: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["published", "plan", system, *_GIVEN]) == 2
    assert words in capsys.readouterr().err
