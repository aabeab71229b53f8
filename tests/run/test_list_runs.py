"""Runs are listed with their state, and their losses are drawn."""

import json
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.errors import UserError
from jaxpipe.pictures.loss_picture import LossCurve, draw_losses
from jaxpipe.run.folder_lock import locked
from jaxpipe.run.list_runs import runs_in, summary_of
from jaxpipe.runtime.watchdog import Cause, CauseKind, write_cause

PLAN = {"stages": 2, "replicas": 1, "cluster": "laptop"}


def write_run(folder: Path, *, steps: int, trained: int) -> Path:
    folder.mkdir(parents=True)
    config = {"model": {"num_layers": 4, "dim": 8}, "plan": PLAN, "train": {"steps": steps}}
    rows = [{"run": {"config": config}, "truth": "measured on this machine"}]
    rows += [{"step": step, "loss": 5.0 / step} for step in range(1, trained + 1)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "metrics.jsonl").write_text(f'{text}{{"step": 9')  # killed while it wrote
    return folder


def test_a_run_is_complete_stopped_failed_or_running(tmp_path: Path) -> None:
    write_run(tmp_path / "a", steps=2, trained=2)
    write_run(tmp_path / "b" / "deeper", steps=5, trained=2)
    failed = write_run(tmp_path / "c", steps=5, trained=0)
    write_cause(failed, Cause(kind=CauseKind.HANG, message="3 s", rank=1))
    running = write_run(tmp_path / "d", steps=5, trained=1)
    with locked(running):
        found = runs_in(tmp_path)
    states = [run.state for run in found]
    assert states[:3] == ["complete", "stopped", "failed: rank 1: hang: 3 s"]
    assert states[3].startswith("running (process ")
    assert [run.last_step for run in found] == [2, 2, 0, 1]
    assert (found[0].model, found[0].plan) == ("4 layers, dim 8", "2 x 1 on laptop")


def test_the_command_lists_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = write_run(tmp_path / "a", steps=2, trained=2)
    second = write_run(tmp_path / "b", steps=3, trained=1)
    picture = tmp_path / "losses.png"
    assert main(["runs", str(first), str(second), "--png", str(picture)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["run", "model", "plan", "steps", "loss", "state"]
    assert "2/2" in lines[1]
    assert "2.500  complete" in lines[1]
    assert "stopped" in lines[2]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert main(["runs", str(first), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["truth"] == "measured on this machine"


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="takes a folder with runs"):
        runs_in(tmp_path / "missing")
    with pytest.raises(UserError, match="a run has metrics with its configuration"):
        summary_of(tmp_path)
    assert runs_in(tmp_path) == ()


def test_names_are_not_read_as_mathematics(tmp_path: Path) -> None:
    curve = LossCurve(name=r"$\frac{$", losses=[(1, 2.0)], held_out=[(1, 3.0)])
    draw_losses([curve], tmp_path / "a.svg", title=r"$\frac{$")
    assert (tmp_path / "a.svg").stat().st_size > 0
