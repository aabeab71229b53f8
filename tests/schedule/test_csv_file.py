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
    text = "# mine\n\n 0F0, 0F1,0B0 ,0B1\n ,1F0,1B0,,1F1,1B1,,\n"
    plain = one_f_one_b(num_stages=2, num_microbatches=2)
    assert read(tmp_path, text, num_stages=2) == plain


def test_rows_of_a_file_are_ranks_with_their_chunks(tmp_path: Path):
    text = "0F0,2F0,2I0,2W0,0B0\n1F0,3F0,3B0,1B0\n"
    schedule = read(tmp_path, text, num_stages=4)
    assert [each.stage for each in schedule[1]] == [1, 3, 3, 1]
    assert schedule_text(schedule) == text


@pytest.mark.parametrize(
    ("text", "num_stages", "words"),
    [
        ("", 2, "has 0 rows with cells, and `num_stages` .2. must be a multiple"),
        ("0F0,0B0\n1F0,1B0\n", 3, "has 2 rows with cells, and `num_stages` .3. must be a multiple"),
        ("0F0,0B0\n", 0, "`num_stages` .0."),
        ("# mine\n0F0,0X0\n", 1, "row 2, column 2, `0X0` is none; write the stage, F, B, I or W"),
        ("0F0,0B-1\n", 1, "row 1, column 2, `0B-1` is none"),
        ("F0,B0\n", 1, "row 1, column 1, `F0` is none; .*, and the microbatch, such as 0F3"),
        ("0F0,0SEND_F0\n", 1, "row 1, column 2, `0SEND_F0` is none"),
        (f"0F{'9' * 5000},0B0\n", 1, r"row 1, column 1, `0F9{38}\.\.\.` is none; write"),
        (f"{'9' * 5000}F0,0B0\n", 2, r"row 1, column 1, `9{40}\.\.\.` is none"),
        ("0F0,1B0\n", 1, "rank 0 of 1 holds stage 0: .* column 2, `1B0` is of another one"),
        # Where rank 0 holds the first and the last stage, as in a V, the stages of others differ.
        ("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n", 4, "rank 0 of 2 holds stage 0, 2: .*, `3F0` is of"),
        ("0F0,0B0,,0F0\n", 1, "row 1, column 1, `0F0` occurs again; remove it"),
        ("0F0,0B0,0W0,0I0\n", 1, "row 1, column 2, `0B0` is both; remove one of them"),
        ("0F0,0B0,0F2,0B2\n", 1, "row 1 lacks `0F1`"),
        ("0F0,0F1,0B0\n", 1, "row 1 lacks `0B1`"),
        ("0F0,0I0\n", 1, "row 1 lacks `0W0`"),
        ("0F0,0B0\n1F0,1F1,1B1,1B0\n", 2, "row 1 lacks `0F1`"),
        ("0F0,1F0,1B0\n", 2, "row 1 lacks `0B0`"),
        ("0F0,0W0,0I0\n", 1, "row 1, column 2, `0W0` never runs; move it"),
        ("0F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n", 2, "row 1, column 2, `0B0` never runs; move it"),
        # Row 1 waits, too, but for row 2.
        ("0F0,0F1,0B0,0B1\n1F1,1B0,1F0,1B1\n", 2, "row 2, column 2, `1B0` never runs; move it"),
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
