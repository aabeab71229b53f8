"""Table of a comparison: markdown, CSV, and JSON lines that begin with the configuration."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from jaxpipe.baselines.compare.check_request import TABLE
from jaxpipe.baselines.compare.measured import MeasuredSystem
from jaxpipe.baselines.compare.system import OVERLAPS
from jaxpipe.trace import Truth

_MIB = 2**20


def row(measured: MeasuredSystem, truth: Truth) -> dict[str, str]:
    """Return the row of a system; headings or cells say if a value was measured or counted.

    `truth` is that of the links, which steps depend on.
    """
    how = "counted" if measured.is_counted else "measured"
    search = "none" if measured.search_s is None else f"{measured.search_s:.2f}"
    return {
        "system": measured.system.value,
        "runs": measured.strategy,
        "overlaps": OVERLAPS[measured.system],
        f"step s ({truth})": f"{measured.step_s:.4f}",
        f"tokens/s ({truth})": f"{measured.tokens_per_s:,.0f}",
        "MiB a step over slow links": f"{measured.slow_bytes / _MIB:.3f} {how}",
        "MiB a step over all links": f"{measured.sent_bytes / _MIB:.3f} {how}",
        "peak MiB of a rank (measured)": f"{measured.peak_bytes / _MIB:.0f}",
        "compile s (measured)": f"{measured.compile_s:.2f} {measured.compiled_from}",
        "search s (measured)": search,
        "first loss (measured)": f"{measured.steps[0].loss:.5f}",
        "last loss (measured)": f"{measured.steps[-1].loss:.5f}",
    }


def markdown(all_measured: Sequence[MeasuredSystem], truth: Truth) -> str:
    """Return the rows as a table of markdown."""
    rows = [row(measured, truth) for measured in all_measured]
    lines = [list(rows[0]), ["---"] * len(rows[0]), *(list(row.values()) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def write_table(
    all_measured: Sequence[MeasuredSystem],
    description: Mapping[str, Any],
    folder: Path,
    *,
    truth: Truth,
    notes: str,
) -> tuple[Path, ...]:
    """Write `compare.md`, `compare.csv` and `compare.jsonl`; return their paths."""
    # The table last: `check_comparison` takes its presence for a finished comparison.
    paths = (folder / "compare.md", folder / "compare.jsonl", folder / TABLE)
    paths[0].write_text(f"{markdown(all_measured, truth)}\n\n{notes}\n")
    lines = [{"run": description}, *(msgspec.to_builtins(measured) for measured in all_measured)]
    paths[1].write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    rows = [row(measured, truth) for measured in all_measured]
    with paths[2].open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return paths
