"""CSV tables with a header and comments: the format of the tables of the catalogue."""

import csv

from jaxpipe.foreign_file import lines_of


def csv_rows(text: str) -> list[dict[str, str]]:
    r"""Return the rows of a table; lines that begin with `#` are comments.

    >>> csv_rows("# seen in May\nregion,hosts\nohio,2\n")
    [{'region': 'ohio', 'hosts': '2'}]

    Raises:
        ValueError: the text is not CSV, or a row is shorter or longer than the header.
    """
    lines = [line for line in lines_of(text) if line.strip() and not line.startswith("#")]
    try:
        rows = list(csv.DictReader(lines))
    except csv.Error as error:
        raise ValueError(f"cannot parse as CSV: {error}") from None
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise ValueError(f"row {number} must have as many cells as the header")
    return rows
