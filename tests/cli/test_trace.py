"""`jaxpipe trace`, called as from a terminal, on a run of threads."""

import json
from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from tests.runtime.training import run_tree, tiny_tree


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> Path:
    folder = tmp_path_factory.mktemp("traced") / "run"
    run_tree(tiny_tree(folder, dataset, trace={"links": "ranks", "links_every": 2}))
    return folder


@pytest.mark.slow
def test_the_parts_of_a_run_and_of_its_plan_add_up(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["trace", str(run_folder), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["truth"] == "measured"
    assert len(printed["ranks"]) == 4
    for rank in printed["ranks"]:
        assert sum(rank["spent"].values()) == pytest.approx(printed["seconds"])
    (simulated,) = printed["simulated"]
    assert sum(simulated["mean"].values()) == pytest.approx(simulated["seconds"])
    assert [report["first_step"] for report in printed["links"]] == [1, 3]
    assert 0 < simulated["seconds"] < 2 * printed["seconds"]


@pytest.mark.slow
def test_it_says_who_waits_and_draws_plan_and_run(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    picture, overlay = tmp_path / "both.png", tmp_path / "both.json"
    files = ["--png", str(picture), "-o", str(overlay)]
    assert main(["trace", str(run_folder), "--links", "free", "--step", "3", *files]) == 0
    said = capsys.readouterr().out
    for words in ("(measured, step 3)", "longest wait for", "simulated: ", "over free links"):
        assert words in said
    assert said.endswith(f"next: open {overlay} in ui.perfetto.dev\n")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(json.loads(overlay.read_text())["traceEvents"]) > 100


@pytest.mark.slow
def test_chosen_ranks_are_listed_and_drawn(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    picture = tmp_path / "some.svg"
    arguments = ["trace", str(run_folder), "--ranks", "0,2-3", "--stages", "1"]
    assert main([*arguments, "--png", str(picture)]) == 0
    said = capsys.readouterr().out
    listed = [line for line in said.splitlines() if line[:1].isdecimal()]
    assert [line.split()[0] for line in listed] == ["3"]
    assert "of planned" in said
    assert "rank 0 -> rank 1" in said
    assert "1 of 4 ranks" in picture.read_text()
    assert main([*arguments, "--json"]) == 0
    assert [rank["rank"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [3]
    assert main(["trace", str(run_folder), "--ranks", "4"]) == 2
    assert "choose from 0 to 3" in capsys.readouterr().err


@pytest.mark.slow
def test_a_trace_file_is_shown_alone(run_folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", str(run_folder / "trace.json")]) == 0
    assert "simulated" not in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["trace", str(tmp_path)]) == 2
    assert "must be a trace that jaxpipe wrote" in capsys.readouterr().err


@pytest.mark.slow
def test_a_step_that_the_trace_lacks_is_refused(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["trace", str(run_folder), "--step", "99"]) == 2
    assert "choose from [2, 3, 4]" in capsys.readouterr().err


@pytest.mark.slow
def test_what_was_compressed_has_bytes_seconds_and_a_price(
    tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
):
    sections = {
        "model": {"num_layers": 3},
        "plan": {"stages": 3, "replicas": 2, "boundaries": ["int8", "none"]},
        "outer": {"islands": 2, "every": 2},
    }
    tree = tiny_tree(tmp_path / "run", dataset)
    run_tree({**tree, **{name: tree.get(name, {}) | sections[name] for name in sections}})
    assert main(["trace", str(tmp_path / "run"), "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["compressed"]}
    assert set(rows) == {"stage 0 to 1", "stage 1 to 2", "outer loop"}
    coded, plain, loop = rows["stage 0 to 1"], rows["stage 1 to 2"], rows["outer loop"]
    assert coded["plain_bytes"] == plain["plain_bytes"] == plain["num_bytes"]
    assert coded["num_bytes"] == pytest.approx(coded["plain_bytes"] * 65 / 256)
    assert (coded["sent"], plain["sent"]) == ("int8", "all numbers")
    assert coded["seconds"] > 0
    assert plain["seconds"] > 0
    assert "2 islands, every 2 steps" in loop["sent"]
    assert loop["seconds"] >= 0
    assert main(["trace", str(tmp_path / "run"), "--step", "2"]) == 0
    said = capsys.readouterr().out
    assert "compressed (bytes of a step each way, seconds measured)" in said
    assert "+0 % of loss (none was seen for 0.84 M parameters)" in said
