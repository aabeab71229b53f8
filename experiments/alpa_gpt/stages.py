"""Search the stages of table 1: `python -m experiments.alpa_gpt.stages`.

Both of Alpa's searches, with the constants of tables 2.1 and 2.2 and nothing fitted to table 1, on
V100s of 32 GB, those of tables 2.1 and 2.2, and of 16 GB, which AWS has. TFLOPS are recomputed from
the published times as well.

What a layer takes longer than predicted, for each microbatch, is a column of its own: the row of
one GPU, which has nothing to search, gives seconds that the last column adds in the other rows.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.alpa_gpt.formulas import GIB
from experiments.alpa_gpt.published import PipelineRow, pipeline_rows
from experiments.table import markdown, percent, write_csv
from jaxpipe.baselines.autoshard.hlo import CompileTarget, target_speeds
from jaxpipe.baselines.gpt.alpa_gpt import step_flops
from jaxpipe.baselines.gpt.staged_search import SearchedStages, search_stages
from jaxpipe.models import GptConfig, load_preset

_RESULTS = Path(__file__).parent / "results"
_BATCH = 1024
_MEMORY_GIB = (32, 16)
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
    rows = pipeline_rows()
    found = {(row.gpus, gib): _searched(row, memory_gib=gib) for gib in _MEMORY_GIB for row in rows}
    first = rows[0]
    layer_s = _missing_layer_s(first, found[first.gpus, _MEMORY_GIB[0]])
    return [
        {
            "gpus": row.gpus,
            "model": f"alpa-{_MODELS[row.gpus]}",
            "memory GiB": gib,
            **_theirs(row),
            **_ours(row, found[row.gpus, gib], layer_s=layer_s),
        }
        for gib in _MEMORY_GIB
        for row in rows
    ]


def _theirs(row: PipelineRow) -> dict[str, str]:
    flops = step_flops(pipeline_model(row.gpus), batch=_BATCH, remat=True)
    tflops = flops / row.seconds / 1e12
    return {
        "theirs: seconds": f"{row.seconds:.3f}",
        "theirs: TFLOPS": f"{row.tflops:.2f}",
        "recomputed TFLOPS": f"{tflops:.2f}",
        "error": percent(tflops / row.tflops - 1),
    }


def _searched(row: PipelineRow, *, memory_gib: int) -> SearchedStages:
    """Return what both searches find for a row."""
    return search_stages(
        pipeline_model(row.gpus),
        replace(target_speeds(CompileTarget.V100), memory_bytes=memory_gib * GIB),
        num_devices=row.gpus,
        batch=_BATCH,
        remat=True,
    )


def _slowest_layers(found: SearchedStages) -> int:
    """Return the layers that the longest stage computes in a step, one after the other."""
    return max(found.staged.cut) * (_BATCH // found.microbatch)


def _missing_layer_s(row: PipelineRow, found: SearchedStages) -> float:
    """Return the published seconds that are not predicted, for a layer and a microbatch."""
    return (row.seconds - found.staged.step_s) / _slowest_layers(found)


def _ours(row: PipelineRow, found: SearchedStages, *, layer_s: float) -> dict[str, str]:
    """Return stages and predictions, and those with `layer_s` more for a layer and a microbatch."""
    shapes = [f"{dp} x {op}" for dp, op in found.shapes]
    more_s = found.staged.step_s + layer_s * _slowest_layers(found)
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
        "missing ms, a layer and microbatch": f"{1e3 * _missing_layer_s(row, found):.2f}",
        "error with those of the first row": percent(more_s / row.seconds - 1),
    }


if __name__ == "__main__":
    main()
