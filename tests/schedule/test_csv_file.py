"""Schedules as files: what is written is read, and what cannot run is refused cell by cell."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxpipe.errors import PlanError
from jaxpipe.schedule import (
    Schedule,
    count_stages,
    one_f_one_b,
    read_schedule,
    schedule_text,
    write_schedule,
    zb_h1,
)
from tests.schedule.strategies import named_schedules, split_schedules


@settings(deadline=None)
@given(schedule=st.one_of(named_schedules(), split_schedules()))
def test_a_file_gives_back_the_schedule(
    tmp_path_factory: pytest.TempPathFactory, schedule: Schedule
):
    path = tmp_path_factory.getbasetemp() / "schedule.csv"
    write_schedule(schedule, path)
    assert read_schedule(path, num_stages=count_stages(schedule)) == schedule


def read(folder: Path, text: str, *, num_stages: int) -> Schedule:
    path = folder / "my.csv"
    path.write_text(text)
    return read_schedule(path, num_stages=num_stages)


def test_empty_cells_lines_and_comments_mean_nothing(tmp_path: Path):
    text = "# mine\n\n F0, F1,B0 ,B1\n ,F0,B0,,F1,B1,,\n"
    plain = one_f_one_b(num_stages=2, num_microbatches=2)
    assert read(tmp_path, text, num_stages=2) == plain


def test_rows_of_a_file_are_ranks_with_their_chunks(tmp_path: Path):
    text = "F0.0,F0.1,I0.1,W0.1,B0.0\nF0.0,F0.1,B0.1,B0.0\n"
    schedule = read(tmp_path, text, num_stages=4)
    assert [each.stage for each in schedule[1]] == [1, 3, 3, 1]
    assert schedule_text(schedule).endswith(f"\n{text}")


@pytest.mark.parametrize(
    ("text", "num_stages", "words"),
    [
        ("", 2, "has 0 rows with cells, and `num_stages` .2. must be a multiple"),
        ("F0,B0\nF0,B0\n", 3, "has 2 rows with cells, and `num_stages` .3. must be a multiple"),
        ("F0,B0\n", 0, "`num_stages` .0."),
        ("# mine\nF0,X0\n", 1, "row 2, column 2, `X0` is none; write F, B, I or W and a number"),
        ("F0,B-1\n", 1, "row 1, column 2, `B-1` is none"),
        (f"F{'9' * 5000},B0\n", 1, r"row 1, column 1, `F9{39}\.\.\.` is none; write F, B, I"),
        (f"F0.{'9' * 5000},B0\n", 2, r"row 1, column 1, `F0\.9{37}\.\.\.` is none"),
        ("F0.0,B0.0\n", 1, "row 1, column 1, `F0.0` needs no chunk after its number"),
        ("F0,B0\n", 2, "row 1, column 1, `F0` needs a chunk below 2 after its number"),
        ("F0.2,B0.0\n", 2, "row 1, column 1, `F0.2` needs a chunk below 2"),
        ("F0,B0,,F0\n", 1, "row 1, column 1, `F0` occurs again; remove it"),
        ("F0,B0,W0,I0\n", 1, "row 1, column 2, `B0` is both; remove one of them"),
        ("F0,B0,F2,B2\n", 1, "row 1 lacks `F1`"),
        ("F0,F1,B0\n", 1, "row 1 lacks `B1`"),
        ("F0,I0\n", 1, "row 1 lacks `W0`"),
        ("F0,B0\nF0,F1,B1,B0\n", 2, "row 1 lacks `F1`"),
        ("F0.0,F0.1,B0.1\n", 2, "row 1 lacks `B0.0`"),
        ("F0,W0,I0\n", 1, "row 1, column 2, `W0` never runs; move it"),
        ("F0,B0,F1,B1\nF0,F1,B0,B1\n", 2, "row 1, column 2, `B0` never runs; move it"),
        # Row 1 waits, too, but for row 2.
        ("F0,F1,B0,B1\nF1,B0,F0,B1\n", 2, "row 2, column 2, `B0` never runs; move it"),
    ],
)
def test_a_file_that_is_no_whole_step_is_refused(
    tmp_path: Path, text: str, num_stages: int, words: str
):
    with pytest.raises(PlanError, match=words):
        read(tmp_path, text, num_stages=num_stages)


def test_a_file_that_is_not_there_is_named(tmp_path: Path):
    with pytest.raises(PlanError, match=r"cannot read the schedule .*none.csv"):
        read_schedule(tmp_path / "none.csv", num_stages=1)


def test_the_head_says_what_the_letters_are():
    head = schedule_text(zb_h1(num_stages=1, num_microbatches=1)).splitlines()
    assert [line[0] for line in head] == ["#", "#", "F"]
    assert all(len(line) <= 100 for line in head)
