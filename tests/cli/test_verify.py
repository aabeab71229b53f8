"""`jaxpipe verify`: what it takes, its exit code, and `train --verify`."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from jaxpipe.cli.main import main
from jaxpipe.verify import certificate
from tests.cli.conftest import WriteConfig


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the environment of this process, whose jax has started, as it is."""
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "")


def test_a_plan_needs_a_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    file = tmp_path / "plan.toml"
    file.write_text('format = 7\nschedule = "1f1b"\n')
    assert main(["verify", str(file)]) == 2
    assert "`model` is missing: " in capsys.readouterr().err
    file.write_text("format = \n")
    assert main(["verify", str(file)]) == 2
    assert "plan.toml is not TOML" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "none.toml")]) == 2
    assert "cannot read " in capsys.readouterr().err


@pytest.mark.slow
def test_ranks_that_fail_are_exit_code_1(
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    class Refusing:
        def __call__(self, *_: Any, **__: Any) -> None:
            raise MemoryError("no room")

    monkeypatch.setattr(certificate, "CompileOnce", Refusing)
    assert main(["verify", str(write_config()), "--set", "model.num_layers=2"]) == 1
    shown = capsys.readouterr().out
    assert "WRONG  the ranks did not finish: MemoryError: no room" in shown
    assert "verdict     NOT equal to one device" in shown
    assert "masks of the data" not in shown  # the dataset is prepared


def test_training_does_not_start_after_a_bad_verdict(
    write_config: WriteConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    asked: list[list[str]] = []

    def run(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    config = str(write_config())
    assert main(["train", config, "--verify", "--set", "train.steps=3"]) == 1
    assert asked[0][1:] == ["-P", "-m", "jaxpipe", "verify", config, "--set", "train.steps=3"]
    assert not (tmp_path / "run").exists()


def test_ranks_of_an_mpirun_do_not_verify(
    write_config: WriteConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    assert main(["train", str(write_config()), "--verify"]) == 2
    assert "`--verify` is for the command that starts the ranks" in capsys.readouterr().err
