"""`jaxpipe compare` as a user starts it: what it refuses, and what it writes."""

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jaxpipe import topo
from jaxpipe.cli.main import main
from tests.cli.conftest import WriteConfig
from tests.helpers import mpi_command, mpi_environment

pytestmark = pytest.mark.mpi

TWO = {"plan": {"stages": 1, "replicas": 2}, "model": {"num_layers": 1}, "train": {"batch": 2}}
ODD = {"plan": {"stages": 2, "replicas": 1}, "model": {"num_layers": 2}, "train": {"batch": 3}}


@pytest.mark.parametrize(
    ("against", "changes", "words"),
    [
        ("zero33", {}, "not 'zero33'; did you mean zero3?"),
        ("ddp,", {}, "`--against` must be one of alpa, megatron, zero3, ddp"),
        ("ddp", ODD, "`train.batch` must be a multiple of the ranks for ddp"),
        (
            "alpa",
            {"model": {"dropout": 0.5}},
            "and SPMD systems do not support 0.5; use 0",
        ),
        ("ddp", {"train": {"remat": "dots"}}, "do not support dots; use none or full"),
    ],
)
def test_what_cannot_be_compared_is_refused(
    write_config: WriteConfig,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    against: str,
    changes: dict[str, Any],
    words: str,
) -> None:
    sections = {name: {**TWO.get(name, {}), **changes.get(name, {})} for name in {**TWO, **changes}}
    path = write_config(**sections)
    arguments = ["compare", str(path), "--against", against, "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def test_links_that_are_emulated_for_the_pipeline_alone_are_refused(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_config(**TWO))
    assert main(["compare", path, "--against", "alpa", "--set", "run.transport=shaped"]) == 2
    assert (
        "do not support shaped; use mpi; for links that are emulated for all"
        in capsys.readouterr().err
    )


def test_a_mesh_of_two_axes_has_no_collectives_of_all_ranks(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(write_config(**TWO))
    assert main(["compare", path, "--against", "alpa,ddp", "--executor", "host"]) == 2
    assert "leave alpa out of `against`, or use spmd" in capsys.readouterr().err


def test_ranks_are_not_started_twice(
    write_config: WriteConfig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = str(write_config(**TWO))
    assert main(["compare", path, "--rank-of", "ddp"]) == 2
    assert (
        "`--rank-of` is for ranks that an MPI has started; leave it out" in capsys.readouterr().err
    )
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["compare", path]) == 2
    assert "`jaxpipe compare` starts its own ranks" in capsys.readouterr().err


def test_the_pipeline_and_what_was_found_in_one_table(
    write_config: WriteConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out = write_config(**TWO), tmp_path / "out"
    arguments = ["compare", str(path), "--against", "alpa", "--steps", "2", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "jaxpipe", *arguments],
        capture_output=True,
        text=True,
        timeout=250,
        env=mpi_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "next: jaxpipe train" in done.stdout
    rows = list(csv.DictReader((out / "compare.csv").read_text().splitlines()))
    assert [row["system"] for row in rows] == ["pipeline", "alpa"]
    losses = [float(row["last loss (measured)"]) for row in rows]
    assert losses[0] == pytest.approx(losses[1], abs=2e-5)
    sent = [row["MiB a step over slow links"].split()[1] for row in rows]
    assert sent == ["measured", "counted"]
    first, *lines = map(json.loads, (out / "compare.jsonl").read_text().splitlines())
    assert first["run"]["config"]["train"]["steps"] == 2
    assert [len(line["steps"]) for line in lines] == [2, 2]
    # The search took the links between the ranks, not those of the cluster.
    mesh = json.loads((out / "alpa-strategy.json").read_text())["mesh"]
    assert lines[0]["searched_for"] is None
    assert "GFLOP/s a rank; dp 1 x op 2: op " in lines[1]["searched_for"]
    assert lines[1]["searched_for"] in (out / "compare.md").read_text()
    laptop = topo.load("laptop").link(0, 1)
    found = mesh["op_link" if mesh["op"] == 2 else "dp_link"]
    assert 0 < found["latency_s"] != pytest.approx(laptop.latency_s)
    assert (out / "compare.png").exists()
    assert main(arguments) == 2
    assert "has one; choose another" in capsys.readouterr().err


def test_ranks_that_fail_say_why_and_their_launcher_does_not(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, "-m", "jaxpipe", "compare", str(write_config(**TWO)), "--out", out],
        capture_output=True,
        text=True,
        timeout=250,
        env=mpi_environment() | {"JAX_PLATFORMS": "abacus"},
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "abacus" in done.stderr
    assert "pipeline: its ranks ended with exit code 1; their output is above" in done.stderr
    assert "MPI_ABORT" not in done.stderr
    assert "prterun" not in done.stderr


def test_ranks_of_an_mpirun_of_ones_own_resolve_the_plan(
    write_config: WriteConfig, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    arguments = ["compare", str(write_config(**TWO)), "--rank-of", "pipeline", "--steps", "2"]
    done = subprocess.run(
        mpi_command(2, "-m", "jaxpipe", *arguments, "--out", str(out)),
        capture_output=True,
        text=True,
        timeout=250,
        env=mpi_environment(),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (out / "pipeline.json").exists()
