"""`jaxpipe evaluate` refuses options that do not fit before it imports anything slow."""

from pathlib import Path

import pytest

from jaxpipe.cli.main import main


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--shots", "2"], "`--shots` needs `--tasks`"),
        (["--chat"], "`--chat` needs `--tasks`"),
        (["--tasks", "a", "--windows", "2"], "`--windows` must be without `--tasks`"),
        (["--tasks", "a", "--data", "b"], "`--data` must be without `--tasks`"),
        (["--tasks", " ,"], "`--tasks` must name a task, and is empty"),
        (["--tasks", "a", "--limit", "0"], "`--limit` must be from 1 to 1,000,000,000, not 0"),
        (["--tasks", "a", "--shots", "-1"], "`--shots` must be from 0 to 1,000,000,000, not -1"),
        (["--tasks", "a", "--task-folder", "nowhere"], "`--task-folder` must be a folder"),
        (["--windows", "0"], "`--windows` must be from 1 to 1,000,000,000, not 0"),
    ],
)
def test_options_that_do_not_fit_are_refused(
    words: list[str], expected: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(tmp_path), *words]) == 2
    assert expected in capsys.readouterr().err


def test_tasks_need_the_harness(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("jaxpipe.cli.evaluate.find_spec", lambda _: None)
    assert main(["evaluate", str(tmp_path), "--tasks", "a"]) == 2
    assert "pip install 'jaxpipe[harness]'" in capsys.readouterr().err
