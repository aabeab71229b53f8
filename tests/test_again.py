"""What has failed in the whole run fails the gate, unless it passes alone."""

import json
from pathlib import Path

import pytest

from tests import again

PASSES = "tests/test_again.py::test_something_passes"


def test_something_passes() -> None:
    """Be a test that passes."""


@pytest.mark.parametrize(
    ("failed", "code"),
    [
        ([PASSES], 0),
        ([PASSES, "tests/test_again.py::test_that_is_not_there"], 4),
        ([PASSES] * 6, 1),  # more than a busy machine explains
        ([], 1),  # the run did not end as runs of tests do
        (None, 1),
    ],
)
def test_a_second_try_decides(
    failed: list[str] | None, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "lastfailed"
    if failed is not None:
        file.write_text(
            json.dumps(
                {f"{test}{'' if len(failed) < 6 else n}": True for n, test in enumerate(failed)}
            )
        )
    monkeypatch.setattr(again, "_FAILED", file)
    assert again.main() == code
