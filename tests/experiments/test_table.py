"""Tables of results read back as they were written."""

from pathlib import Path

import pytest

from experiments.table import (
    Row,
    append_csv,
    markdown,
    read_csv,
    read_values,
    update_csv,
    write_csv,
)


@pytest.mark.parametrize("rows", [[{"a": 1, "b": "x"}], [{"a": 0.5, "b": ""}, {"a": 2, "b": "y"}]])
def test_a_table_reads_back(tmp_path: Path, rows: list[Row]):
    write_csv(rows, tmp_path / "table.csv")
    assert read_values(tmp_path / "table.csv") == rows


def test_appended_rows_equal_written_ones(tmp_path: Path):
    rows: list[Row] = [{"a": 1, "b": 2.34567}, {"a": 2, "b": 1.0}]
    write_csv(rows, tmp_path / "written.csv", number=".3f")
    for row in rows:
        append_csv(row, tmp_path / "appended.csv", number=".3f")
    written = (tmp_path / "written.csv").read_text()
    assert (tmp_path / "appended.csv").read_text() == written == "a,b\n1,2.346\n2,1.000\n"


def test_repeated_rows_replace_those_before(tmp_path: Path):
    path, order = tmp_path / "table.csv", ["first", "second", "third"]
    update_csv(
        [{"case": "third", "s": 3}, {"case": "first", "s": 1}], path, key="case", order=order
    )
    again: list[Row] = [{"case": "second", "s": 2}, {"case": "third", "s": 4}]
    update_csv(again, path, key="case", order=order)
    assert [tuple(row.values()) for row in read_values(path)] == [
        ("first", 1),
        ("second", 2),
        ("third", 4),
    ]


def test_text_cells_keep_their_digits(tmp_path: Path):
    write_csv([{"loss": "5.460107073187828", "n": 3.0}], tmp_path / "table.csv")
    assert read_csv(tmp_path / "table.csv") == [{"loss": "5.460107073187828", "n": "3"}]
    assert markdown(read_csv(tmp_path / "table.csv")).endswith("| 5.460107073187828 | 3 |")
