"""`jaxpipe published simulate`, called as from a terminal."""

import json
from pathlib import Path

import pytest

from jaxpipe.baselines.systems import System, Way, systems_with
from jaxpipe.cli.main import main
from jaxpipe.cli.published_simulate import simulate
from jaxpipe.trace import Truth, read_chrome

_SIMULATE = ("published", "simulate")
_SMALL = ["--cluster", "homogeneous:hosts=8,delay_ms=1", "--layers", "8", "--batch", "4"]


def test_json_is_one_object_with_seconds_and_their_split(capsys: pytest.CaptureFixture[str]):
    assert main([*_SIMULATE, "--system", "dtfm", *_SMALL, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["truth"] == "simulated"
    assert printed["seconds"] == pytest.approx(sum(printed["breakdown"].values()))
    assert printed["pflops"] > 0


def test_the_trace_opens_again(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    path = tmp_path / "trace.json"
    assert main([*_SIMULATE, "--system", "jaxpipe", *_SMALL, "--trace", str(path)]) == 0
    assert "simulated, with constants fitted" in capsys.readouterr().out
    trace = read_chrome(path)
    assert trace.truth is Truth.SIMULATED
    assert len(trace.rank_names) in (4, 8)


def test_an_unknown_cluster_is_refused(capsys: pytest.CaptureFixture[str]):
    arguments = [*_SIMULATE, "--system", "dtfm", "--cluster", "case9"]
    assert main(arguments) == 2
    assert "`--cluster`: no cluster 'case9'" in capsys.readouterr().err


def test_an_unknown_system_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main([*_SIMULATE, "--system", "dtfn", *_SMALL]) == 2
    assert "not 'dtfn'; did you mean dtfm?" in capsys.readouterr().err


@pytest.mark.parametrize("system", systems_with(Way.SIMULATE))
def test_the_help_names_every_system(system: System):
    assert system in (simulate.__doc__ or "")


def test_a_run_that_needs_more_memory_than_a_device_has_says_so(
    capsys: pytest.CaptureFixture[str],
):
    size = ["--layers", "24", "--batch", "64", "--microbatch", "8", "--precision", "fp32"]
    cluster = ["--cluster", "case1-datacenter:hosts=1"]
    assert main([*_SIMULATE, "--system", "megatron-p8", *cluster, *size]) == 0
    assert "more than the 16 GiB it has" in capsys.readouterr().out


def test_an_unfitted_precision_is_refused(capsys: pytest.CaptureFixture[str]):
    assert main([*_SIMULATE, "--system", "megatron-p8", *_SMALL, "--precision", "fp8"]) == 2
    assert "`--precision` is one of fp16, fp32, not 'fp8'" in capsys.readouterr().err


def test_the_ranks_of_a_stage_are_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "step.svg"
    arguments = [
        "published",
        "simulate",
        "--system",
        "dtfm",
        *_SMALL,
        "--png",
        str(picture),
        "--stages",
    ]
    assert main([*arguments, "0"]) == 0
    assert capsys.readouterr().out.endswith(f"\npicture -> {picture}\n")
    drawn = picture.read_text()
    assert "rank 0" in drawn
    assert "stage 1" not in drawn
    assert main([*arguments, "99"]) == 2
    assert "`--stages` must be of the trace, not 99" in capsys.readouterr().err


def test_devices_that_do_not_train_are_said(capsys: pytest.CaptureFixture[str]):
    cluster = ["--cluster", "homogeneous:hosts=12,delay_ms=1", "--layers", "8", "--batch", "4"]
    assert main([*_SIMULATE, "--system", "megatron-p8", *cluster]) == 0
    assert "8 of 12 devices train" in capsys.readouterr().out
