"""Search the stages of table 1: `python -m experiments.alpa_gpt.stages`.

Both of Alpa's searches, with the constants of tables 2.1 and 2.2 and nothing fitted to table 1.
TFLOPS are recomputed from the published times as well.
"""

from pathlib import Path
from typing import Any

from experiments.alpa_gpt.formulas import GIB
from experiments.alpa_gpt.published import PipelineRow, pipeline_rows
from experiments.table import markdown, percent, write_csv
from jaxpipe.baselines.autoshard.hlo import CompileTarget, target_speeds
from jaxpipe.baselines.gpt.alpa_gpt import step_flops
from jaxpipe.baselines.gpt.staged_search import search_stages
from jaxpipe.models import GptConfig, load_preset

_RESULTS = Path(__file__).parent / "results"
_BATCH = 1024
_MODELS = {1: "350m", 2: "760m", 4: "1.3b", 8: "2.6b", 16: "6.7b"}


def main() -> None:
    """Search, compare, and write `results/table1.csv` and `table1.md`."""
    table = _table()
    write_csv(table, _RESULTS / "table1.csv")
    (_RESULTS / "table1.md").write_text(markdown(table) + "\n")
    print(markdown(table))


def pipeline_model(gpus: int) -> GptConfig:
    """Return the model of the row of table 1 with this number of GPUs."""
    fields = load_preset(f"alpa-{_MODELS[gpus]}")
    return GptConfig(**{**fields, "compute_dtype": "float16"})


def _table() -> list[dict[str, Any]]:
    table = []
    for row in pipeline_rows():
        flops = step_flops(pipeline_model(row.gpus), batch=_BATCH, remat=True)
        tflops = flops / row.seconds / 1e12
        table.append(
            {
                "gpus": row.gpus,
                "model": f"alpa-{_MODELS[row.gpus]}",
                "theirs: seconds": f"{row.seconds:.3f}",
                "theirs: TFLOPS": f"{row.tflops:.2f}",
                "recomputed TFLOPS": f"{tflops:.2f}",
                "error": percent(tflops / row.tflops - 1),
                **_searched(row),
            }
        )
    return table


def _searched(row: PipelineRow) -> dict[str, str]:
    """Return what both searches find for a row: stages, and what they predict."""
    found = search_stages(
        pipeline_model(row.gpus),
        target_speeds(CompileTarget.V100),
        num_devices=row.gpus,
        batch=_BATCH,
        remat=True,
    )
    shapes = [f"{dp} x {op}" for dp, op in found.shapes]
    return {
        "ours: stages": ", ".join(shapes),
        "ours: layers": " ".join(map(str, found.staged.cut)),
        "ours: microbatch": str(found.microbatch),
        "ours: seconds, predicted": f"{found.staged.step_s:.1f}",
        "seconds, error": percent(found.staged.step_s / row.seconds - 1),
        "ours: TFLOPS, predicted": f"{found.tflops:.1f}",
        "theirs: peak GiB": f"{row.peak_gib:.3f}",
        "ours: peak GiB, predicted": f"{found.peak_bytes / GIB:.3f}",
        "theirs: search and compile s": f"{row.compile_s:.0f}",
        "ours: search s, measured": f"{found.search_s:.1f}",
    }


if __name__ == "__main__":
    main()
