"""Tables split by columns: one all-reduce becomes two all-gathers, as in Alpa's float32 rows."""

from dataclasses import asdict, replace
from pathlib import Path

from experiments.alpa_gpt.published import more_rows
from jaxpipe.baselines.autoshard.hlo import run_python

ROOT = Path(__file__).parents[3]


def test_each_table_is_gathered_where_megatron_all_reduces_their_sum() -> None:
    row = next(each for each in more_rows() if each.case.dtype == "float32" and each.case.op == 4)
    case = asdict(replace(row.case, layers=1, remat=False))
    request = [
        case | {"target": "cpu", "by_layout": True, "tables_by_columns": by_columns}
        for by_columns in (False, True)
    ]
    by_rows, by_columns = (
        each["counts"]
        for each in run_python("experiments.alpa_gpt.compiled", request, num_devices=4, path=ROOT)
    )
    changes = {name: by_columns[name] - by_rows[name] for name in by_rows}
    assert {name: change for name, change in changes.items() if change} == {
        "allreduce": -1,
        "allgather": 2,
        "num_comm": 1,
    }
