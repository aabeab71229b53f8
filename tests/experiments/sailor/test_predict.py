"""Predictions of measured runs keep their accuracy, and rows outside the table are predicted."""

import json
import time
from pathlib import Path

import pytest

from experiments.sailor import run
from experiments.sailor.measured import measured_table, simulator_table
from experiments.sailor.predict import KNOWN_BEFORE, fit, measured_rows, predict
from experiments.table import Row, write_csv
from jaxpipe.errors import PlanError

BASE = {"model": "OPT-350", "microbatch": "8", "batch": "1024"}


def _row(cut: str, placement: str, **other: str) -> dict[str, str]:
    return {**BASE, "id": "new", "cut": cut, "placement": placement, **other}


def test_the_median_errors_of_the_measured_runs():
    errors = {
        (row["simulator"], row["what"], row["cluster"]): float(row["median"])
        for row in simulator_table(measured_table())
    }
    assert errors["jaxpipe", "seconds", "all"] < 0.04
    assert errors["jaxpipe", "memory_bytes", "all"] < 0.08
    assert errors["jaxpipe", "seconds", "all"] < errors["Sailor", "seconds", "all"]
    assert errors["jaxpipe, cluster left out", "seconds", "all"] < 0.07


def test_constants_do_not_depend_on_the_seconds_of_steps():
    rows = measured_rows()
    assert fit([{**row, "seconds": "1"} for row in rows]) == fit(rows)
    assert fit([row for row in rows if row["cluster"] == "mit"]) == KNOWN_BEFORE


@pytest.mark.parametrize("gpus", [128, 256])
@pytest.mark.parametrize("cut", ["26", "12 14", "5 7 7 7"])
def test_more_gpus_take_less_time_but_no_less_than_their_share(gpus: int, cut: str):
    stages = len(cut.split())
    constants = fit(measured_rows())

    def seconds(num_gpus: int) -> float:
        stage = f"{num_gpus // 4 // stages}xGH-96:4"
        began_s = time.monotonic()
        found = predict(_row(cut, " | ".join([stage] * stages)), constants).seconds
        assert time.monotonic() - began_s < 20  # far less than a second on a quiet machine
        return found

    assert seconds(gpus) / 2 < seconds(2 * gpus) < seconds(gpus)


def test_a_mix_of_six_nodes_is_as_slow_as_its_slowest():
    constants = fit(measured_rows())
    mixed = _row("26", "2xRTX-3090:8+2xTitan-RTX:8+2xRTX-2080:8", microbatch="2", batch="256")
    alike = _row("26", "6xTitan-RTX:8", microbatch="2", batch="256")
    assert predict(mixed, constants).seconds > 2 * predict(alike, constants).seconds


def test_more_live_microbatches_take_more_memory():
    constants = fit(measured_rows())
    stages = " | ".join(["1xGH-96:4"] * 4)
    one = predict(_row("5 7 7 7", stages, batch="8"), constants)
    four = predict(_row("5 7 7 7", stages, batch="32"), constants)
    many = predict(_row("5 7 7 7", stages, batch="1024"), constants)
    assert four.memory_bytes > 1.5 * one.memory_bytes
    assert many.memory_bytes == four.memory_bytes


def test_what_was_not_profiled_is_refused_by_name():
    with pytest.raises(PlanError, match="profiled GPUs of OPT-350: H100:4"):
        predict(_row("26", "1xH100:4"), KNOWN_BEFORE)


def test_the_command_prints_a_line_for_each_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    rows: list[Row] = [_row("26", "16xGH-96:4"), _row("26", "32xGH-96:4", id="larger")]
    write_csv(rows, tmp_path / "runs.csv")
    monkeypatch.setattr("sys.argv", ["run", "predict", str(tmp_path / "runs.csv")])
    assert run.main() == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["id"] for line in lines] == ["new", "larger"]
    assert all(set(line) == {"id", "seconds", "memory_bytes"} for line in lines)
