"""The reports: ratios of known seconds, blanks for missing ones, and an error for other losses."""

import csv
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.compare_group.cases import Setting, read_cases
from experiments.compare_group.jobs import published_layout, published_s
from experiments.compare_group.paced import done, todo
from experiments.compare_group.real import Measured, others
from experiments.compare_group.real_runs import Links, Run
from experiments.compare_group.reports import (
    against_published,
    against_theirs,
    end_to_end,
    implementation,
    read_results,
    scheduler,
)
from experiments.compare_group.tables import check_losses, real_rows
from jaxpipe.baselines.systems import System

SIMULATED = {
    Setting.MEGATRON_OPTIMAL: 20.0,
    Setting.MEGATRON_P8: 20.0,
    Setting.OURS: 10.0,
    Setting.OURS_UNSCHEDULED: 15.0,
    Setting.DTFM: 16.0,
    Setting.DTFM_UNSCHEDULED: 24.0,
    Setting.ZERO3: 99.0,
}


def write(path: Path, rows: list[dict[str, str | float]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    megatron = System.MEGATRON_P8.value
    write(
        tmp_path / "simulated.csv",
        [
            {
                "case": "case 1",
                "setting": setting.value,
                "runs": megatron if setting is Setting.MEGATRON_OPTIMAL else "8 stages x 8",
                "published_s": 20.0 if setting is Setting.DTFM else "",
                "simulated_s": seconds,
            }
            for setting, seconds in SIMULATED.items()
        ],
    )
    paced = {Setting.MEGATRON_P8: 22.0, Setting.OURS: 10.0, Setting.DTFM: 16.8}
    rows = [{"case": "case 1", "setting": s.value, "paced_s": t} for s, t in paced.items()]
    write(tmp_path / "paced.csv", rows)
    return tmp_path


def test_ratios_are_of_what_was_executed(folder: Path):
    results = read_results(folder)
    (row,) = end_to_end(results)
    assert (row["(a)/(c) simulated"], row["(a)/(c) paced"]) == (2.0, 2.2)
    (row,) = scheduler(results)
    assert row["(d)/(c) simulated"] == 1.5
    assert row["(d)/(c) paced"] == ""
    (row,) = against_theirs(results)
    assert row["(e)/(c) paced"] == pytest.approx(1.68)
    assert row["within 10 %"] == "yes"
    assert implementation(results, "case 1")[-1]["simulated"] == pytest.approx(20 / 15)


def test_bounds_are_judged_where_there_is_something_to_judge(folder: Path):
    scheduled, unscheduled = against_published(read_results(folder))
    assert (scheduled["within 15 %"], scheduled["within 10 %"]) == ("no", "yes")
    assert (unscheduled["within 15 %"], unscheduled["within 10 %"]) == ("", "")


def test_only_what_is_left_is_executed(folder: Path):
    cases = read_cases()
    jobs = todo(cases, folder, only=["case 1"])
    assert Setting.ZERO3 not in [setting for _, setting in jobs]
    assert Setting.MEGATRON_OPTIMAL not in [setting for _, setting in jobs]
    left = [job for job in jobs if job not in done(folder / "paced.csv")]
    assert [setting.letter for _, setting in left] == ["d", "e"]


def test_megatrons_best_layout_is_the_published_one():
    cases = read_cases()
    assert published_layout(cases.cases[0], cases) is System.MEGATRON_P4T2
    assert published_layout(cases.cases[2], cases) is System.MEGATRON_P8
    assert published_layout(cases.cases[4], cases) is None
    optimal = published_s(Setting.MEGATRON_OPTIMAL, cases.cases[1], cases)
    assert optimal == published_s(Setting.MEGATRON_P8, cases.cases[1], cases)
    assert published_s(Setting.OURS, cases.cases[0], cases) is None


def run(setting: Setting, *, losses: tuple[float, ...], step_s: tuple[float, ...]) -> Measured:
    return Measured(
        network="case 3",
        links=Links.SHAPED,
        setting=setting,
        round=0,
        run=Run(losses=losses, step_s=step_s),
    )


def test_the_first_step_does_not_count_and_ours_is_one():
    ours = run(Setting.OURS, losses=(5.0, 4.0), step_s=(9.0, 2.0))
    other = run(Setting.OURS_UNSCHEDULED, losses=(5.0, 4.00001), step_s=(9.0, 3.0))
    rows = real_rows([ours, other])
    assert [row["of (c)"] for row in rows] == [1.0, 1.5]


def test_what_is_measured_again_replaces_both_kinds_of_namespaces():
    shaped = run(Setting.OURS, losses=(5.0,), step_s=(1.0,))
    kinds = [replace(shaped, links=links) for links in Links]
    assert others(kinds, ["case 3"], Links.NAMESPACES) == [shaped]
    assert others(kinds, ["case 3"], Links.SHAPED) == kinds[1:]
    assert others(kinds, ["case 5"], Links.NAMESPACES) == kinds


def test_other_losses_are_refused():
    ours = run(Setting.OURS, losses=(5.0,), step_s=(1.0,))
    other = run(Setting.MEGATRON_P8, losses=(5.001,), step_s=(1.0,))
    with pytest.raises(RuntimeError, match=r"must be equal: .* b megatron-p8 has loss 5\.001"):
        check_losses([ours, other])
