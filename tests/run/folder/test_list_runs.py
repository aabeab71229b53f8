"""Runs are listed with their state, and their losses are drawn."""

import json
from pathlib import Path

import numpy as np
import pytest

from jaxpipe.cli.main import main
from jaxpipe.errors import UserError
from jaxpipe.pictures.loss_picture import LossCurve, draw_losses
from jaxpipe.run.folder.folder_lock import locked
from jaxpipe.run.folder.list_runs import runs_in, summary_of
from jaxpipe.run.folder.runs_picture import draw_runs
from jaxpipe.runtime.checkpoint import begin_checkpoint, commit, write_shard
from jaxpipe.runtime.checkpoint.object_storage.object_store import ObjectStore
from jaxpipe.runtime.hooks import NO_HOOKS
from jaxpipe.runtime.storage.object_folder import open_object_folder
from jaxpipe.runtime.watchdog import Cause, CauseKind, mark_ended, write_cause
from jaxpipe.trace import Lane, Span, Trace, Truth, write_chrome

PLAN = {"stages": 2, "replicas": 1, "cluster": "laptop"}


def write_run(folder: Path, *, steps: int, trained: int) -> Path:
    folder.mkdir(parents=True)
    config = {"model": {"num_layers": 4, "dim": 8}, "plan": PLAN, "train": {"steps": steps}}
    rows = [{"run": {"config": config}, "truth": "measured on this machine"}]
    rows += [{"step": step, "loss": 5.0 / step} for step in range(1, trained + 1)]
    text = "".join(f"{json.dumps(row)}\n" for row in rows)
    (folder / "metrics.jsonl").write_text(f'{text}{{"step": 9')  # killed while it wrote
    return folder


def test_a_run_that_failed_after_its_last_save_is_complete(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", steps=2, trained=2)
    write_cause(folder, Cause(kind=CauseKind.STOPPED, message="it is stopped", rank=1))
    assert runs_in(tmp_path)[0].state == "failed: rank 1: stopped: it is stopped"
    mark_ended(folder)
    assert runs_in(tmp_path)[0].state == "complete, but then: rank 1: stopped: it is stopped"


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


def test_runs_are_laid_next_to_each_other_with_their_timelines(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    spans = (Span(rank=0, lane=Lane.COMPUTE, name="forward", start_s=0, end_s=1, step=7, stage=0),)
    traces = {
        name: Trace(truth=Truth.MEASURED, rank_names=(f"on {name}-host",), spans=spans)
        for name in ("a", "b")
    }
    for name, trace in traces.items():
        write_chrome(trace, write_run(tmp_path / name, steps=9, trained=3) / "trace.json")
    found = [summary_of(tmp_path / name) for name in traces]
    draw_runs(found, tmp_path / "both.svg")
    drawn = (tmp_path / "both.svg").read_text()
    for name in traces:
        assert f"{tmp_path / name} · step 7 · measured" in drawn
        assert f"{name}-host" in drawn
        assert f"<!-- {tmp_path / name} -->" in drawn  # of its curve, in the legend
    (tmp_path / "b" / "trace.json").write_text("{")
    draw_runs(found, tmp_path / "one.svg")
    assert "b-host" not in (tmp_path / "one.svg").read_text()
    assert "without a timeline of" in caplog.text
    # More of them than a page can hold: losses alone.
    draw_runs([found[0]] * 5, tmp_path / "five.svg")
    assert "a-host" not in (tmp_path / "five.svg").read_text()


def test_held_out_losses_are_points_of_their_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", steps=2, trained=2)
    text = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [*text[:-1], json.dumps({"step": 3, "loss": 1.0, "eval_loss": 1.5})]
    (folder / "metrics.jsonl").write_text("\n".join(rows) + "\n")
    found = summary_of(folder)
    assert found.held_out == ((3, 1.5),)
    assert [step for step, _ in found.losses] == [1, 2, 3]


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


def test_the_newest_checkpoint_of_a_folder_or_a_store_is_one_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (tmp_path / "run", f"file://{tmp_path}/run"):
        assert main(["runs", "--newest", str(place)]) == 0
    assert capsys.readouterr().out == ""
    folder = begin_checkpoint(tmp_path / "run", step=7)
    commit(folder, write_shard(folder, "stage-0", {"a": np.ones(3)}), {})
    assert main(["runs", "--newest", str(tmp_path / "run")]) == 0
    store = open_object_folder(f"file://{tmp_path}/store")
    at_rank_0 = ObjectStore(store, keep=1, hooks=NO_HOOKS)
    at_rank_0.commit(at_rank_0.write("stage-0", {"a": np.ones(3)}, step=9), {}, step=9)
    assert main(["runs", "--newest", store.url]) == 0
    assert capsys.readouterr().out == "7\n9\n"
    assert main(["runs", "--newest", "nothing://a"]) == 2
    assert "`--newest` must be a URL that fsspec knows" in capsys.readouterr().err
