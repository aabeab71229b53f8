"""Reports of links have every byte of a run, and nothing else."""

from pathlib import Path

import pytest

from jaxpipe.runtime.metrics.records import StepMetrics
from jaxpipe.trace import LinkReport, Traffic, link_table, total_bytes
from tests.runtime.training import run_tree, tiny_tree

pytestmark = pytest.mark.slow

STEPS, EVALUATIONS, REPLICAS, MICROBATCHES = 4, 3, 2, 4
ACTIVATION_BYTES = 4 * 16 * 16
"""Of one microbatch: float32, one sample of 16 tokens, 16 wide."""


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory, dataset: Path) -> list[StepMetrics]:
    folder = tmp_path_factory.mktemp("links") / "run"
    links = {"links": "ranks", "links_every": 3}
    plan = {"cluster": "two-region"}
    return run_tree(tiny_tree(folder, dataset, trace=links, plan=plan))


@pytest.fixture(scope="module")
def reports(metrics: list[StepMetrics]) -> list[LinkReport]:
    return [each.links for each in metrics if each.links is not None]


def test_are_due_at_their_interval_and_at_the_end(metrics: list[StepMetrics]) -> None:
    due = [(each.step, each.links.first_step) for each in metrics if each.links is not None]
    assert due == [(3, 1), (4, 4)]


def test_activations_are_those_of_the_plan(reports: list[LinkReport]) -> None:
    messages = REPLICAS * MICROBATCHES * (2 * STEPS + EVALUATIONS)
    links = [link for report in reports for link in report.regions]
    assert total_bytes(links, Traffic.ACTIVATIONS) == messages * ACTIVATION_BYTES


def test_bytes_of_steps_are_those_that_the_transport_counts(
    metrics: list[StepMetrics], reports: list[LinkReport]
) -> None:
    links = [link for report in reports for link in report.regions]
    of_evaluations = REPLICAS * MICROBATCHES * EVALUATIONS * ACTIVATION_BYTES
    moved = total_bytes(links, Traffic.ACTIVATIONS) + total_bytes(links, Traffic.GRADIENTS)
    assert moved == sum(each.sent_bytes for each in metrics) + of_evaluations


def test_kinds_ranks_and_regions_have_the_same_sums(reports: list[LinkReport]) -> None:
    for report in reports:
        whole = total_bytes(report.regions)
        assert whole == total_bytes(report.ranks)
        assert whole == sum(total_bytes(report.regions, traffic) for traffic in Traffic)


def test_stages_are_in_one_region_and_replicas_in_two(reports: list[LinkReport]) -> None:
    far = [
        link
        for report in reports
        for link in report.regions
        if link.source != link.to and link.num_bytes
    ]
    assert {(link.source, link.to) for link in far} == {("ohio", "virginia"), ("virginia", "ohio")}
    assert "activations" not in {link.traffic for link in far}
    gradients = total_bytes(far, Traffic.GRADIENTS)
    assert gradients > 0


def test_the_table_sums_all_reports(reports: list[LinkReport]) -> None:
    head, *lines = link_table(reports)
    assert [line.split("  ")[0].strip() for line in lines] == [
        "ohio -> ohio",
        "ohio -> virginia",
        "virginia -> ohio",
        "virginia -> virginia",
    ]
    assert head.split()[:4] == [traffic.value for traffic in Traffic]
    activations = sum(float(line.split(" -> ")[1].split()[1]) for line in lines)
    links = [link for report in reports for link in report.regions]
    assert activations == pytest.approx(total_bytes(links, Traffic.ACTIVATIONS) / 1e6, rel=1e-3)


def test_no_report_where_none_is_asked_for(tmp_path: Path, dataset: Path) -> None:
    tree = tiny_tree(tmp_path / "run", dataset, trace={"links": "none"})
    assert all(each.links is None for each in run_tree(tree))
