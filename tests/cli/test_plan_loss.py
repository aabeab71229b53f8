"""`jaxpipe plan --objective loss`: all methods, and the plan of the first."""

import json
import re
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.cli.main import main
from jaxpipe.plan import read_plan

SMALL = ("--cluster", "two-region", "--model", "tiny", "--batch", "8", "--set", "paced.tflops=0.01")
QUICK = ("--budget", "1")


def planned(out: Path, *words: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Plan, and return what is printed."""
    assert main(["plan", *SMALL, *QUICK, "--out", str(out), *words]) == 0
    return capsys.readouterr().out


def test_the_time_to_a_loss_is_told_of_all_methods_and_the_first_can_be_trained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    out = tmp_path / "plan.toml"
    words = ("--objective", "loss")
    told = planned(out, *words, capsys=capsys)
    assert "time to the loss of 100 uncompressed steps (steps are simulated)" in told
    for name in ("uncompressed", "codecs", "rank", "rank and codecs", "2 islands"):
        assert re.search(rf"^  {name}\b.* s +1\.\d+x", told, re.MULTILINE), told
    assert main(["plan", *SMALL, *QUICK, "--out", str(out), *words, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    best = min(method["equal_loss_seconds"] for method in answer["methods"])
    (first, *_) = [m for m in answer["methods"] if m["equal_loss_seconds"] <= 1.01 * best]
    assert first["seconds_to_loss"] == pytest.approx(100 * first["equal_loss_seconds"])
    assert read_plan(out, topo.load("two-region")).shape == first["shape"]


def test_what_decides_more_than_a_schedule_is_not_exported(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    words = ("--objective", "loss", "--export", "torch-csv", "--out", str(tmp_path / "p"))
    assert main(["plan", *SMALL, *words]) == 2
    assert "`--export` (torch-csv) writes a schedule" in capsys.readouterr().err


def test_codecs_are_named_with_the_limit_that_they_were_chosen_within(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    # Islands have no room: their meetings do not divide the steps.
    words = ("--objective", "loss", "--set", "train.steps=97", "--set", "plan.replicas=4")
    cluster = tmp_path / "slow.toml"
    cluster.write_text(
        'name = "slow"\n[[hosts]]\nregion = ["a", "b"]\ncount = 2\ntflops = 0.1\n'
        "[inside_region]\nlatency_ms = 0.1\nbandwidth_gbps = 10\n"
        "[across_regions]\nlatency_ms = 1\nbandwidth_gbps = 0.01\n"
    )
    told = planned(tmp_path / "p.toml", *words, "--cluster", str(cluster), capsys=capsys)
    assert "codecs of this plan, at most safe" in told
    assert "--set comm.gradients=int8" in told
