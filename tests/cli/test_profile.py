"""`jaxpipe profile`, called as from a terminal."""

from pathlib import Path

import pytest

from jaxpipe.cli.main import main

_QUICK = ["--model", "tiny", "--repeats", "1"]


@pytest.mark.slow
def test_it_measures_and_the_planner_plans_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    path, plan = tmp_path / "profile.json", tmp_path / "plan.toml"
    assert main(["profile", *_QUICK, "-o", str(path)]) == 0
    said = capsys.readouterr().out
    for words in ("embedding", "block", "head and loss", "of peak", "measured on this machine"):
        assert words in said
    assert f"next: jaxpipe plan --profile {path} --model tiny --remat full" in said
    where = ["--cluster", "laptop", "--batch", "8", "--budget", "1", "-o", str(plan)]
    assert main(["plan", "--profile", str(path), "--model", "tiny", *where]) == 0
    assert plan.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "tyni"], "`--model`: "),
        (["--model", "tiny", "--sequence", "4", "-o", "x.json"], "`--sequence` is 4"),
        (
            ["--model", "tiny", "--layers", "9"],
            "4 together, not 9",
        ),
        (["--model", "tiny", "--layers", "2;2"], "`--layers` must be numbers"),
        (["--model", "tiny", "--microbatch", "0"], "`microbatch` must be at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["profile", *arguments]) == 2
    assert words in capsys.readouterr().err
