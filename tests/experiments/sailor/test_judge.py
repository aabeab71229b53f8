"""The judge gives the published seconds and dollars of every plan, and notices a wrong one."""

import pytest

from experiments.sailor.judge import Judge
from experiments.sailor.judged import differing, judged_rows
from experiments.sailor.published import (
    Curve,
    LayerCost,
    LayerSize,
    Model,
    judged_plans,
    model,
    scenarios,
)
from jaxpipe.search.layout import Group, Layout, Run


def test_all_published_plans_are_judged_alike():
    rows = judged_rows()
    assert len(rows) == 51
    assert differing(rows) == []


def test_a_difference_is_found():
    first, *_ = judged_rows()
    assert len(differing([{**first, "difference": 2e-9}])) == 1
    assert len(differing([{**first, "ours_dollars": float(first["ours_dollars"]) + 1e-3}])) == 1


def test_published_plans_fit_their_memory():
    for each in judged_plans():
        found = scenarios()[each.scenario]
        assert Judge(model(found.model), found.batch).fits(each.layout), each


def test_a_stage_that_is_too_large_does_not_fit():
    judge = Judge(model("GPT-Neo-2.7"), 1024)
    layout = Layout(
        cut=(34,), stages=((Run(Group("V100-16", "us-central1-a", 1), 1),),), microbatch=1
    )
    assert not judge.fits(layout)


def test_the_formula_by_hand(monkeypatch: pytest.MonkeyPatch):
    """Two stages, two replicas: messages of 1 GB take a second, of gradients half a GB each."""
    monkeypatch.setattr(
        "experiments.sailor.judge.links",
        lambda: {(("g", "z"), n, ("g", "z"), m): Curve(0, 0, 1) for n in (1, 2) for m in (1, 2)},
    )
    size = LayerSize(
        parameters=125_000_000, output_floats=250_000_000, input_floats=0, kept_floats=0
    )
    costs = {
        ("g", 1, tensor): (LayerCost(1.0 / tensor, 2.0 / tensor, 0.5),) * 3 for tensor in (1, 2)
    }
    judge = Judge(Model(name="three", costs=costs, sizes={1: (size,) * 3, 2: (size,) * 3}), 10)
    one, two = Group("g", "z", 1), Group("g", "z", 2)
    layout = Layout(cut=(1, 2), stages=((Run(one, 2),), (Run(two, 1), Run(one, 1))), microbatch=1)
    # The slowest stage: 6 s of compute and two messages of 1 s, for 5 microbatches of a replica.
    # The gradients of two layers are 1 GB, in two buckets, of which half is sent twice.
    assert judge.step_s(layout) == pytest.approx(4 * (6 + 2) + (1 + 2) + (3 + 6) + 0.5 + 1.0)
