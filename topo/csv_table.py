"""CSV files with a header and with comments: what the catalogue's tables are written in."""

import csv


def csv_rows(text: str) -> list[dict[str, str]]:
    r"""Return the rows of a table; lines that begin with `#` are comments.

    >>> csv_rows("# seen in May\nregion,hosts\nohio,2\n")
    [{'region': 'ohio', 'hosts': '2'}]
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return list(csv.DictReader(lines))
