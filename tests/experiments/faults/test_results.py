"""The tables of the fault experiment, from trials and from what was seen of a run."""

from pathlib import Path

import pytest

from experiments.faults.long_run import Watched, progress
from experiments.faults.table import RESULTS, row


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.csv")), ids=lambda path: path.stem)
def test_each_file_of_trials_has_its_row(path: Path) -> None:
    passed, _, trials = str(row(path)["passed"]).partition(" of ")
    assert 0 < int(passed) <= int(trials)


def test_repeated_steps_are_no_progress() -> None:
    # Steps 3 and 4 are lost and repeated; the last interval is not over.
    seen = [(0.5, 2), (1.9, 4), (2.5, 2), (3.5, 4), (5.0, 6), (6.1, 6)]
    tokens = 24 * 64
    assert progress(seen) == [
        {"seconds": "2", "tokens_per_s": f"{4 * tokens / 2:.0f}"},
        {"seconds": "4", "tokens_per_s": "0"},
        {"seconds": "6", "tokens_per_s": f"{2 * tokens / 2:.0f}"},
    ]


def test_events_are_in_seconds_since_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(begin_s=10.0)
    monkeypatch.setattr("experiments.faults.long_run.time.monotonic", lambda: 12.5)
    watched.happens("a host dies")
    assert watched.events == [(2.5, "a host dies")]
