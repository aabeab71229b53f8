"""Steps of torch are predicted from seconds of its stages, with receives posted late and ahead."""

from pathlib import Path

import pytest

from experiments.torch_predicted import run

pytestmark = pytest.mark.slow

STAGE = {"layers": 3, "forward_s": 0.05, "backward_s": 0.1, "update_s": 0.01}


def test_a_schedule_is_faster_with_receives_posted_ahead(tmp_path: Path):
    file = tmp_path / "1f1b.csv"
    words = run.settings("continents", "plan.schedule=1f1b")
    run.run_jaxpipe("show", str(run.MODEL), *words, "--schedule-csv", str(file))
    ahead_s, late_s = (
        run.predicted(
            "continents", str(file), run.profile_file(tmp_path, [STAGE] * 2, posts_ahead=a)
        )
        for a in (True, False)
    )
    # Eight microbatches and the fill of a pipeline of two stages, at least.
    assert 9 * 0.15 < ahead_s < late_s
