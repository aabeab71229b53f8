"""Drawings of schedules, against golden files."""

import pytest

from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.schedule import gpipe, lower, render
from tests.schedule.golden_cases import FOLDER, texts


@pytest.mark.parametrize("name", texts())
def test_the_text_is_the_golden_file(name: str):
    assert f"{texts()[name]}\n" == (FOLDER / f"{name}.txt").read_text(encoding="utf-8")


def test_every_golden_file_has_a_case():
    assert sorted(path.stem for path in FOLDER.iterdir()) == sorted(texts())


@pytest.mark.parametrize("num_columns", [12, 40, 60, 100])
def test_a_drawing_keeps_within_its_columns(num_columns: int):
    rows = render(gpipe(num_stages=3, num_microbatches=30), num_columns=num_columns)
    assert all(len(row) <= num_columns for row in rows.splitlines()[:3])


def test_messages_take_no_slot():
    compute = gpipe(num_stages=2, num_microbatches=2)
    assert render(lower(compute, tied=True, num_replicas=2)) == render(compute)


def test_a_drawing_without_room_is_refused():
    with pytest.raises(ConfigError, match=r"`num_columns` .10. must be at least 11"):
        render(gpipe(num_stages=2, num_microbatches=2), num_columns=10)


def test_a_drawing_of_nothing_is_refused():
    with pytest.raises(PlanError, match=r"`num_stages` .0."):
        render(())
