"""The claims without their measurements: summaries, ideals and bounds of made-up runs."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

import topo
from experiments.runtime_benchmark import run, training
from experiments.runtime_benchmark.alpha_beta import alpha_beta_s
from experiments.runtime_benchmark.claim import CannotMeasureError, Row
from experiments.runtime_benchmark.claims import overlap
from experiments.runtime_benchmark.claims.all_reduce import ALL_REDUCE
from experiments.runtime_benchmark.claims.one_device import ONE_DEVICE
from experiments.runtime_benchmark.claims.torch import TORCH
from experiments.runtime_benchmark.ideal import ideal_columns
from experiments.runtime_benchmark.plans import emulated_cluster, plan_of
from experiments.runtime_benchmark.raw_table import RawTable
from experiments.runtime_benchmark.tables import read_csv, write_csv
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


def test_the_hidden_part_of_sums_is_what_computes_cover():
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


def test_what_was_not_run_is_said():
    cases = {"torch": {"schedules": ["gpipe"]}}
    with pytest.raises(CannotMeasureError, match="torch, parts; for torch give `--torch-python`"):
        training.of([{"system": "one device", "how": "parts", "cores": 1}], TORCH.runs(cases))


def test_speeds_are_held_against_the_same_on_one_core():
    def rows(system: str, how: str, cores: int, *speeds: float) -> list[Row]:
        row = {"system": system, "how": how, "cores": cores}
        return [{**row, "tokens_per_s": speed} for speed in speeds]

    raw = [
        *rows("one device", "parts", 1, 10.0),
        *rows("torch", "parts", 1, 8.0),
        *rows("jaxpipe", "1f1b", 2, 18.0, 30.0, 12.0),
        *rows("torch", "1f1b", 2, 12.0),
    ]
    whole, pipeline = TORCH.summarise(raw)
    assert whole["ratio"] == 1.25
    assert (pipeline["ratio"], pipeline["jaxpipe_scaling"]) == (1.5, 1.8)
    assert pipeline["torch_scaling"] == 1.5


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
    run.main(["crossover", "--tiny", "--out", str(tmp_path)])
    slow, fast = read_csv(tmp_path / "crossover_raw.csv")
    assert slow["pipeline_over_zero3"] < 1 < fast["pipeline_over_zero3"]  # pyright: ignore[reportOperatorIssue]
    assert (tmp_path / "crossover.png").stat().st_size > 0


def test_a_resumed_run_measures_what_is_missing(tmp_path: Path):
    measured: list[int] = []

    def measure(number: int) -> list[Row]:
        measured.append(number)
        return [{"step": step, "seconds": 0.5} for step in (1, 2)]

    def run_rounds(*numbers: int, resumes: bool) -> list[Row]:
        table = RawTable(tmp_path / "raw.csv", resumes=resumes)
        return [
            row
            for number in numbers
            for row in table.once({"round": number}, lambda number=number: measure(number))
        ]

    first = run_rounds(0, 1, resumes=False)
    assert read_csv(tmp_path / "raw.csv") == first
    assert run_rounds(0, 1, 2, resumes=True)[:4] == first
    assert measured == [0, 1, 2]
    assert len(read_csv(tmp_path / "raw.csv")) == 6
    run_rounds(0, resumes=False)
    assert measured == [0, 1, 2, 0]
    assert len(read_csv(tmp_path / "raw.csv")) == 2


@pytest.mark.parametrize("rows", [[{"a": 1, "b": "x"}], [{"a": 0.5, "b": ""}, {"a": 2, "b": "y"}]])
def test_a_table_reads_back(tmp_path: Path, rows: list[Row]):
    write_csv(rows, tmp_path / "table.csv")
    assert read_csv(tmp_path / "table.csv") == rows
