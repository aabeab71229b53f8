"""Rows that no constant was fitted to: `python -m experiments.alpa_gpt.more`.

Table 2.3, with 8, 12 and 16 layers, and table 2.2 in float32, next to what `run --layers` and `run
--dtype float32` predicted with the constants of tables 2.1 and 2.2. Nothing is compiled here.
"""

from collections.abc import Mapping
from pathlib import Path

from experiments.alpa_gpt.published import Case, Row, more_rows
from experiments.table import markdown, percent, read_csv, write_csv

_RESULTS = Path(__file__).parent / "results"
_NAMES = ("num_comm", "allreduce", "allgather", "reducescatter")


def main() -> None:
    """Compare, and write `results/more.csv` and `more.md`."""
    table = [_compared(row, predicted(row.case)) for row in more_rows()]
    write_csv(table, _RESULTS / "more.csv")
    (_RESULTS / "more.md").write_text(markdown(table) + "\n")
    print(markdown(table))


def predicted(case: Case) -> Mapping[str, str]:
    """Return our row of a case, from the results of `run`."""
    path = _RESULTS / f"layers{case.layers}-{case.dtype}-batch{case.batch}.csv"
    wanted = {
        "dp": str(case.dp),
        "op": str(case.op),
        "recompute": "yes" if case.remat else "no",
    }
    (found,) = [row for row in read_csv(path) if wanted.items() <= row.items()]
    return found


def _compared(theirs: Row, ours: Mapping[str, str]) -> dict[str, str | int]:
    seconds = ours["ours: seconds, fitted"]
    return {
        "table": theirs.case.table,
        "dtype": theirs.case.dtype,
        "layers": theirs.case.layers,
        "dp": theirs.case.dp,
        "op": theirs.case.op,
        "recompute": ours["recompute"],
        "theirs: comm AR AG RS": " ".join(str(theirs.counts[name]) for name in _NAMES),
        "ours: comm AR AG RS": ours["ours: comm AR AG RS"],
        "theirs: seconds": f"{theirs.seconds:.3f}",
        "ours: seconds, predicted": seconds,
        "seconds, error": percent(float(seconds) / theirs.seconds - 1),
        "theirs: peak GiB": f"{theirs.peak_gib:.3f}",
        "ours: peak GiB, V100 compiled": ours["ours: peak GiB, V100 compiled"],
    }


if __name__ == "__main__":
    main()
