"""`jaxpipe plan` for more devices than are simulated."""

import json
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.plan import check_plan, read_plan
from jaxpipe.propose import fleet_proposal
from jaxpipe.topo import load

CLUSTER = """
name = "many"
[[hosts]]
region = ["ohio", "tokyo"]
count = 2
devices = 4
effective_tflops = 4
memory_gib = 16
nic_gbps = 10
[inside_region]
latency_ms = 1
bandwidth_gbps = 10
[inside_host]
latency_ms = 0.01
bandwidth_gbps = 100
[across_regions]
latency_ms = 80
bandwidth_gbps = 0.5
"""


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setattr(fleet_proposal, "MOST_SIMULATED", 8)
    (tmp_path / "many.toml").write_text(CLUSTER)
    cluster, out = tmp_path / "many.toml", tmp_path / "plan.toml"
    return f"plan --cluster {cluster} --model tiny --batch 32 --budget 1 --out {out}".split()


def test_the_plan_is_in_closed_form_and_is_written(
    words: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["truth"] == "closed form"
    assert sum(found["breakdown"].values()) == pytest.approx(found["seconds"])
    assert found["bound_seconds"] <= found["seconds"] <= found["coarse_seconds"]
    assert found["ranks"] + found["left_out"] == 16
    out = Path(found["plan_file"])
    assert "s a step, closed form." in out.read_text()
    plan = read_plan(out, load(words[2]))
    check_plan(plan, num_devices=16)
    assert plan.batch == 32


def test_the_plan_is_summed_up_by_kinds_of_replicas(
    words: list[str], capsys: pytest.CaptureFixture[str]
):
    assert main(words) == 0
    told = capsys.readouterr().out
    for part in ("of the 16 devices of many", "replicas on devices without a `gpu`: layers"):
        assert part in told
    assert "(closed form, not simulated)" in told


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-tensor", "2"),
        ("--objective", "dollars"),
        ("plan.codecs", "safe"),
        ("plan.stages", "2"),
    ],
)
def test_what_needs_simulations_is_refused(
    words: list[str], option: str, value: str, capsys: pytest.CaptureFixture[str]
):
    given = [option, value] if option.startswith("--") else ["--set", f"{option}={value}"]
    assert main([*words, *given]) != 0
    assert f"`{option}` is {value}, but plans for more than 8 devices" in " ".join(
        capsys.readouterr().err.split()
    )
