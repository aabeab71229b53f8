"""`jaxpipe profile`, called as from a terminal."""

from pathlib import Path
from typing import Any

import jax
import pytest

from jaxpipe.cli.main import main
from jaxpipe.profile import gpt_parts

_QUICK = ["--model", "tiny", "--repeats", "1"]


@pytest.mark.slow
def test_it_measures_in_the_precision_that_is_asked_for_and_the_planner_plans_with_it(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    used: list[object] = []
    flops_per_s = gpt_parts.matrix_peak_flops_per_s

    def peak(**options: Any) -> float:
        used.append(jax.config.jax_default_matmul_precision)  # pyright: ignore[reportAttributeAccessIssue]
        return flops_per_s(**options)

    monkeypatch.setattr(gpt_parts, "matrix_peak_flops_per_s", peak)
    path, plan = tmp_path / "profile.json", tmp_path / "plan.toml"
    assert main(["profile", *_QUICK, "--matmul-precision", "float32", "-o", str(path)]) == 0
    assert used == ["float32"]
    said = capsys.readouterr().out
    for words in (
        "embedding",
        "block",
        "head and loss",
        "of peak",
        "measured on this machine",
        "float32 products on GPUs in float32",
        f"next: jaxpipe plan --set paced.profile={path} --model tiny --set train.remat=full",
        "--set train.remat=full --set run.matmul_precision=float32 --batch 64",
    ):
        assert words in said
    where = ["--cluster", "laptop", "--batch", "8", "--budget", "1", "-o", str(plan)]
    assert main(["plan", "--set", f"paced.profile={path}", "--model", "tiny", *where]) == 0
    assert plan.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "tyni"], "`--model` must be a known name"),
        (["--model", "tiny", "--sequence", "4", "-o", "x.json"], "`--sequence` (4)"),
        (
            ["--model", "tiny", "--layers", "9"],
            "4 together, not 9",
        ),
        (["--model", "tiny", "--layers", "2;2"], "`--layers` must be numbers"),
        (["--model", "tiny", "--microbatch", "0"], "`--microbatch` must be from 1 to"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
):
    assert main(["profile", *arguments]) == 2
    assert words in capsys.readouterr().err
