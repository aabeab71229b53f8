"""Alpa's closed forms give the published figures."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.alpa_gpt import more
from experiments.alpa_gpt.compiled import config_of
from experiments.alpa_gpt.formulas import GIB, state_gib
from experiments.alpa_gpt.more import speed
from experiments.alpa_gpt.published import Row, more_rows, pipeline_rows, rows
from experiments.alpa_gpt.run import FP32_OF_FP16
from experiments.alpa_gpt.stages import pipeline_model
from jaxpipe.baselines.autoshard.hlo import CompileTarget, run_python, target_speeds
from jaxpipe.baselines.gpt.alpa_gpt import step_flops

RESULTS = Path(more.__file__).parent / "results"


@pytest.mark.parametrize("row", rows(), ids=str)
def test_tflops(row: Row) -> None:
    flops = step_flops(config_of(row.case), batch=row.case.batch, remat=row.case.remat)
    assert flops / row.seconds / 1e12 == pytest.approx(row.tflops, rel=5e-3)


def test_the_command_has_the_speed_of_float32_products_that_the_rows_have() -> None:
    fitted = json.loads((RESULTS / "fitted.json").read_text())
    chosen = [row for row in more_rows() if row.case.dtype == "float32"]
    assert len(chosen) == 6
    found = speed(chosen, assumed=FP32_OF_FP16 * fitted["speed"])
    stated = target_speeds(CompileTarget.V100).products["float32"]
    assert stated == pytest.approx(found, rel=0.01)


def test_tflops_of_pipelines() -> None:
    for row in pipeline_rows():
        flops = step_flops(pipeline_model(row.gpus), batch=1024, remat=True)
        assert flops / row.seconds / 1e12 == pytest.approx(row.tflops, rel=5e-3)


@pytest.mark.parametrize("row", [row for row in rows() if (row.case.dp, row.case.op) == (4, 1)])
def test_state_gradients_and_old_parameters_are_all_that_data_parallel_rows_hold(row: Row) -> None:
    assert round(state_gib(config_of(row.case), op=1), 3) == row.peak_gib


@pytest.mark.slow
def test_counts_of_the_smallest_row() -> None:
    """The others are in `results/`; compiling all of them here takes too long."""
    row = next(row for row in rows() if (row.case.dp, row.case.op) == (4, 1))
    case = replace(row.case, layers=1)
    request = {name: getattr(case, name) for name in case.__slots__}
    (found,) = run_python(
        "experiments.alpa_gpt.compiled",
        [{**request, "target": "cpu", "by_layout": True}],
        num_devices=4,
        path=Path(__file__).parents[3],
    )
    assert found["counts"] == row.counts  # of data parallelism they do not depend on the layers
    assert found["arguments"] == pytest.approx(
        14 / 18 * GIB * state_gib(config_of(case), op=1), rel=1e-3
    )
