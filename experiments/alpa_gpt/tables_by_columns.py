"""Split the tables of the embedding by columns: `python -m experiments.alpa_gpt.tables_by_columns`.

The published float32 rows of (1, 4) have one all-reduce less than Megatron's split, and two
all-gathers more. Here the tables of tokens and positions are split by columns, and the vectors that
are looked up in each are gathered before they are added. Compiled for CPUs, and for V100s with the
extra `aot`; nothing runs. Seconds are predicted with the speed of float32 products that `jaxpipe
autoshard` has, which was fitted to all six rows in float32.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

from experiments.alpa_gpt.predict import Fitted, predicted_s, work_of
from experiments.alpa_gpt.published import more_rows
from experiments.table import Row, markdown, percent, write_csv
from jaxpipe.baselines.autoshard.hlo import (
    CompileTarget,
    has_gpu_compiler,
    run_python,
    target_speeds,
)

_HERE = Path(__file__).parent


def main() -> None:
    """Compile the two rows both ways, and write `results/tables_by_columns.csv`."""
    rows = [*_rows(CompileTarget.CPU), *(_rows(CompileTarget.V100) if has_gpu_compiler() else ())]
    write_csv(rows, _HERE / "results" / "tables_by_columns.csv")
    print(markdown(rows))


def _rows(target: CompileTarget) -> Iterator[Row]:
    published = [
        row
        for row in more_rows()
        if (row.case.dtype, row.case.dp, row.case.op) == ("float32", 1, 4)
    ]
    request = [
        {
            **asdict(row.case),
            "target": target.value,
            "by_layout": True,
            "tables_by_columns": by_columns,
        }
        for row in published
        for by_columns in (False, True)
    ]
    found = run_python(
        "experiments.alpa_gpt.compiled", request, num_devices=4, path=_HERE.parents[1]
    )
    speeds = target_speeds(CompileTarget.V100)
    fitted = Fitted(**json.loads((_HERE / "results" / "fitted.json").read_text()))
    fitted = replace(fitted, speed=speeds.products["float32"])
    for place, each in enumerate(found):
        row, counts = published[place // 2], each["counts"]
        seconds = predicted_s(work_of(row.case, each, speeds), fitted)
        yield {
            "target": target.value,
            "recompute": "yes" if row.case.remat else "no",
            "tables split by": ("rows", "columns")[place % 2],
            "all-reduces": counts["allreduce"],
            "all-gathers": counts["allgather"],
            "theirs: all-reduces": row.counts["allreduce"],
            "theirs: all-gathers": row.counts["allgather"],
            "peak GiB": f"{each['peak'] / 2**30:.2f}",
            "theirs: peak": f"{row.peak_gib:.2f}",
            "seconds, predicted": f"{seconds:.3f}",
            "theirs: seconds": f"{row.seconds:.3f}",
            "seconds, error": percent(seconds / row.seconds - 1),
        }


if __name__ == "__main__":
    main()
