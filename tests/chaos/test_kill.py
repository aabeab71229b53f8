"""A rank that is killed at a named point, as `jaxpipe chaos` does it: nothing of it remains."""

from pathlib import Path

from jaxpipe.chaos import Setup
from jaxpipe.chaos.job import write_dataset
from jaxpipe.chaos.kill import KILL

SCALAR_SUM_OF_RANK_1 = 1
"""The seed of this target."""


def test_a_run_ends_as_if_no_rank_had_been_killed(tmp_path: Path) -> None:
    folder = tmp_path / "kill"
    folder.mkdir()
    setup = Setup(
        folder=folder,
        dataset=write_dataset(tmp_path / "data"),
        num_trials=1,
        seed=SCALAR_SUM_OF_RANK_1,
    )
    (trial,) = KILL.trials(setup)
    assert trial.name == "rank 1 at scalar-sum"
    is_late = trial.why.startswith("the job was gone after")  # looked at last; no test takes times
    assert trial.passed or is_late, trial.why
    told = (folder / f"seed-{setup.seed}" / "stdout.txt").read_text()
    assert "attempt 1 failed with exit code" in told
    assert "signal 9 (SIGKILL)" in told
    assert "attempt 2 goes on from step" in told
    assert "attempt 2 is done" in told
