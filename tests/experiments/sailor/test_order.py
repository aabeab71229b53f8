"""The order of the published layouts: taus of the committed seconds, and some of them again."""

from pathlib import Path

import pytest

from experiments.sailor import order
from experiments.sailor.order import APART, judged_links_s, kendall_tau, turned_pairs
from experiments.sailor.published import judged_plans, scenarios
from experiments.table import read_values

ROWS = read_values(Path(order.__file__).parent / "results" / "order.csv")


def test_with_the_judges_all_reduces_the_order_is_the_judges():
    assert kendall_tau(ROWS, "judged_links_s") >= 0.9
    for column in ("blocking_s", "judged_links_s"):
        assert kendall_tau(ROWS, column, apart=APART) == 1.0
    (left,) = turned_pairs(ROWS, "judged_links_s")
    assert (left["scenario"], left["pair"]) == ("fig10-400", "Atlas, Sailor")


def test_the_committed_pairs_are_those_of_the_committed_seconds():
    file = Path(order.__file__).parent / "results" / "order_pairs.csv"
    found = [pair for name in ("blocking_s", "judged_links_s") for pair in turned_pairs(ROWS, name)]
    names = ("scenario", "pair", "messages")
    assert [[row[name] for name in names] for row in read_values(file)] == [
        [pair[name] for name in names] for pair in found
    ]


@pytest.mark.parametrize("planner", ["Atlas", "Sailor"])
def test_committed_seconds_are_simulated(planner: str):
    name = "fig10-40"
    (layout,) = (e.layout for e in judged_plans() if (e.scenario, e.planner) == (name, planner))
    (row,) = (row for row in ROWS if (row["scenario"], row["planner"]) == (name, planner))
    scenario = scenarios()[name]
    found = judged_links_s(layout, scenario.model, scenario.batch)
    assert found == pytest.approx(float(row["judged_links_s"]), rel=1e-5)
