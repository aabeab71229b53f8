"""The claims without their measurements: summaries, ideals and bounds of synthetic runs."""

import json
import shutil
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments.emulated_links import CannotMeasureError
from experiments.runtime_benchmark import run, training
from experiments.runtime_benchmark.bench import Bench, Measurement, RawTable
from experiments.runtime_benchmark.benchmarks import overlap
from experiments.runtime_benchmark.benchmarks.all_reduce import ALL_REDUCE, alpha_beta_s
from experiments.runtime_benchmark.benchmarks.one_device import ONE_DEVICE
from experiments.runtime_benchmark.benchmarks.torch import TORCH
from experiments.runtime_benchmark.runs import emulated_cluster, plan_of
from experiments.runtime_benchmark.training import ideal_columns
from experiments.table import Row, numbers, read_csv, read_values
from jaxpipe import topo
from jaxpipe.collective import AllReduceKind

_HERE = Path(run.__file__).parent


def _span(rank: int, name: str, start_s: float, end_s: float) -> dict[str, Any]:
    lane = name.split(maxsplit=1)[0] if name.startswith(("reduce", "update")) else "compute"
    return {
        "rank": rank,
        "stage": rank,
        "step": 1,
        "lane": lane,
        "name": name,
        "start_s": start_s,
        "end_s": end_s,
    }


def test_an_ideal_step_has_the_ratio_one():
    """Two stages, two microbatches, GPipe: F F . . B B and . F F B B . with B = 2 F."""
    spans = [
        *(_span(0, "forward", float(t), t + 1.0) for t in (0, 1)),
        *(_span(1, "forward", float(t), t + 1.0) for t in (1, 2)),
        *(_span(1, "backward", float(t), t + 2.0) for t in (3, 5)),
        *(_span(0, "backward", float(t), t + 2.0) for t in (5, 7)),
        *(_span(rank, "update", 9.0, 9.5) for rank in (0, 1)),
    ]
    row = ideal_columns(spans, step_s=9.5, schedule="gpipe", num_microbatches=2)
    assert row["ratio"] == row["ratio_pipeline"] == 1.0
    assert row["bubble"] == pytest.approx(row["ideal_bubble"])
    assert row["ideal_bubble"] == pytest.approx(1 / 3)


def test_the_hidden_fraction_of_all_reduces_is_covered_by_computes():
    spans = [
        _span(0, "backward", 0.0, 4.0),
        _span(1, "backward", 0.0, 2.0),
        _span(1, "reduce stage", 2.0, 6.0),
        _span(0, "reduce stage", 3.0, 7.0),
    ]
    assert overlap._hidden(spans) == pytest.approx((2 + 1) / 8)  # pyright: ignore[reportPrivateUsage]
    assert overlap._hidden_by_own(spans) == pytest.approx(1 / 8)  # pyright: ignore[reportPrivateUsage]


def test_an_emulated_link_takes_as_long_as_the_real_one_slowed_down():
    case = tomllib.loads((_HERE / "cases.toml").read_text())["overlap"]
    plan = {"microbatch": 1, "stages": 4, "replicas": 2, "schedule": "1f1b"}
    task = {**case, "plan": plan, "batch": 64}
    link = emulated_cluster(task).link(0, 4)
    sent = 32 * 88 * 4
    real_s = case["activation_bytes"] / (0.79e9 / 8)
    assert sent / link.bandwidth_bytes_per_s == pytest.approx(case["time_scale"] * real_s)
    assert link.latency_s == pytest.approx(case["time_scale"] * 0.067)
    assert plan_of(task, emulated_cluster(task)).num_ranks == 8


def test_a_missing_run_is_reported():
    cases = {"torch": {"schedules": ["gpipe"], "of_jaxpipe": []}}
    with pytest.raises(CannotMeasureError, match="torch, parts; for torch give `--torch-python`"):
        TORCH.select(cases, [{"system": "one device", "how": "parts", "cores": 1}])


def test_a_claim_takes_its_own_rows_of_the_shared_table():
    stored = read_values(_HERE / "results" / "training" / "raw.csv")
    chosen = run.CLAIMS["efficiency"].select(run.cases_of("cases"), stored)
    assert {row["system"] for row in chosen} == {"jaxpipe"}
    assert len(chosen) == 9 < len(stored)


@pytest.mark.parametrize("cases", ["cases", "bytes"])
def test_stored_summaries_follow_from_stored_raw_tables(cases: str, tmp_path: Path):
    stored = _HERE / "results" / ("" if cases == "cases" else cases)
    shutil.copytree(stored, tmp_path, dirs_exist_ok=True)
    run.main(["--summarise", "--cases", cases, "--out", str(tmp_path)])
    summaries = [path.relative_to(stored) for path in stored.glob("*/summary.csv")]
    assert len(summaries) == (12 if cases == "cases" else 2)
    for path in summaries:
        assert read_csv(tmp_path / path) == read_csv(stored / path), path


def test_speeds_are_held_against_the_same_on_one_core():
    def rows(system: str, how: str, cores: int, *speeds: float) -> list[Row]:
        row = {"system": system, "how": how, "cores": cores}
        return [{**row, "tokens_per_s": speed} for speed in speeds]

    raw = [
        *rows("one device", "parts", 1, 10.0),
        *rows("torch", "parts", 1, 8.0),
        *rows("jaxpipe", "1f1b", 2, 18.0, 30.0, 12.0),
        *rows("torch", "1f1b", 2, 12.0),
        *rows("jaxpipe", "replicas", 2, 15.0),
    ]
    whole, pipeline, alone = TORCH.summarise(raw)
    assert whole["ratio"] == 1.25
    assert (pipeline["ratio"], pipeline["jaxpipe_scaling"]) == (1.5, 1.8)
    assert pipeline["torch_scaling"] == 1.5
    assert alone["ratio"] == 1.25  # beside the best of PyTorch


def test_the_faster_form_on_one_core_is_the_baseline():
    raw: list[Row] = [
        {"system": system, "cores": cores, "how": how, "tokens_per_s": speed, "compile_s": 1.0}
        for system, cores, how, speed in (
            ("one device", 1, "whole", 5.0),
            ("one device", 1, "parts", 10.0),
            ("one device", 2, "whole", 19.0),
            ("jaxpipe", 2, "1f1b", 18.0),
        )
    ]
    rows = ONE_DEVICE.summarise(raw)
    assert [row["speedup"] for row in rows] == [0.5, 1.0, 1.9, 1.8]
    assert [bool(row["aim"]) for row in rows] == [False, False, False, True]


def test_all_reduces_are_held_against_the_best_bound():
    raw: list[Row] = [
        {"algorithm": name, "seconds": s, "alpha_beta_s": 1.0, "best_alpha_beta_s": 1.0}
        for name, s in (("ring", 4.0), ("hierarchical", 1.1), ("hierarchical", 1.3))
    ]
    best, ring = ALL_REDUCE.summarise(raw)
    assert best["algorithm"] == "hierarchical"
    assert best["over_best_bound"] == pytest.approx(1.2)
    assert ring["times_the_fastest"] == pytest.approx(4 / 1.2)


@pytest.mark.parametrize(
    ("algorithm", "seconds"),
    [
        (AllReduceKind.SHARDED, 2 * (1 + 16)),  # a fourth at a time to each of the others at once
        (AllReduceKind.RING, 6 * (1 + 16)),
        (AllReduceKind.CENTRAL, 2 * (1 + 64)),
    ],
)
def test_an_all_reduce_on_independent_links_takes_its_closed_form(
    algorithm: AllReduceKind, seconds: float
):
    cluster = topo.load("homogeneous:hosts=4,delay_ms=1000,bandwidth_gbps=8e-9")
    taken_s = alpha_beta_s(algorithm, (0, 1, 2, 3), cluster, num_bytes=64, scale=1.0)
    assert taken_s == pytest.approx(seconds)


def test_the_command_writes_tables_and_a_picture(tmp_path: Path):
    run.main(["crossover", "--tiny", "--pictures", "--out", str(tmp_path)])
    slow, fast = numbers(read_values(tmp_path / "crossover" / "raw.csv"), "pipeline_over_zero3")
    assert slow < fast  # ZeRO-3 gains on faster links
    assert (tmp_path / "crossover" / "picture.png").stat().st_size > 0
    assert list(json.loads((tmp_path / "machine.json").read_text())) == ["crossover"]


def test_pictures_are_drawn_on_demand(tmp_path: Path):
    run.main(["crossover", "--tiny", "--out", str(tmp_path)])
    files = {path.name for path in (tmp_path / "crossover").iterdir()}
    assert files == {"raw.csv", "summary.csv"}


def test_a_resumed_run_measures_what_is_missing(tmp_path: Path):
    measured: list[int] = []

    def measure(number: int) -> list[Row]:
        measured.append(number)
        return [{"step": step, "seconds": 0.5} for step in (1, 2)]

    path = tmp_path / "raw.csv"

    def run_rounds(*rounds: int, resumes: bool) -> list[Row]:
        table = RawTable(path, known=read_values(path) if resumes else ())
        return [
            row
            for number in rounds
            for row in table.once(
                Measurement(columns={"round": number}, measure=partial(measure, number))
            )
        ]

    first = run_rounds(0, 1, resumes=False)
    assert read_values(path) == first
    assert run_rounds(0, 1, 2, resumes=True)[:4] == first
    assert measured == [0, 1, 2]
    assert len(read_values(path)) == 6
    run_rounds(0, resumes=False)
    assert measured == [0, 1, 2, 0]
    assert len(read_values(path)) == 2


def test_measuring_one_claim_again_keeps_what_others_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    stored = _HERE / "results" / "training" / "raw.csv"
    (tmp_path / "training").mkdir()
    path = tmp_path / "training" / "raw.csv"
    shutil.copy(stored, path)
    before = read_values(stored)
    columns = ("system", "how", "cores", "round")
    step = {name: value for name, value in before[0].items() if name not in columns}
    monkeypatch.setattr(training, "check_cores", lambda **_: None)
    monkeypatch.setattr(training, "_rows", lambda *_: [step])
    bench = Bench(cases=run.cases_of("cases"))
    run.measure("training", ["efficiency"], bench, tmp_path, resumes=False)
    after = read_values(path)
    others = [row for row in before if row["system"] != "jaxpipe"]
    assert [row for row in after if row["system"] != "jaxpipe"] == others
    assert len(after) == len(others) + 3
