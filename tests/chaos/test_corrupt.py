"""A trial of each kind on the checkpoint of a run that was trained."""

from pathlib import Path

import pytest

from jaxpipe.chaos.corrupt import CORRUPT
from jaxpipe.chaos.harness.corruption import BREAKS
from jaxpipe.chaos.harness.trial import Setup

pytestmark = pytest.mark.mpi


def test_the_families_trials(tmp_path: Path, dataset: Path) -> None:
    setup = Setup(folder=tmp_path, dataset=dataset, num_trials=2 * len(BREAKS), seed=0)
    trials = list(CORRUPT.trials(setup))
    assert len({trial.name for trial in trials}) > len(BREAKS)
    assert [trial for trial in trials if not trial.passed] == []
