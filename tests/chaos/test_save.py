"""Saves that are cut off: the points exist, a kill there is judged, and so is a full disk."""

from pathlib import Path

import pytest

from jaxpipe.chaos.harness.save_points import SavePoint
from jaxpipe.chaos.harness.trial import Setup
from jaxpipe.chaos.save import SAVE


@pytest.mark.parametrize("seed", [0, 2, 7, 12])
def test_trials(tmp_path: Path, seed: int) -> None:
    setup = Setup(folder=tmp_path, dataset=tmp_path, num_trials=1, seed=seed)
    assert [trial.why for trial in SAVE.trials(setup)] == [""]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("point", "event", "path"),
    [
        (SavePoint.BEFORE_COMMIT, "os.rename", "run/checkpoints/step-00000012.partial"),
        (SavePoint.OLDER_OF_SAME_STEP_NOT_ASIDE, "os.rename", "run/checkpoints/step-00000012"),
        (SavePoint.BEFORE_MANIFEST_IS_READ_BACK, "open", "manifest.json"),
    ],
)
def test_points_are_told_apart(point: SavePoint, event: str, path: str) -> None:
    assert [p for p in SavePoint if p.value.count == 1 and p.value.matches(event, path)] == [point]
