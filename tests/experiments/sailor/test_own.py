"""The closed form of our simulator, and searches with our own seconds."""

from dataclasses import replace

import pytest

from experiments.sailor.exact import all_layouts, short_model, small_task
from experiments.sailor.own import Overlapped, own_search
from experiments.sailor.planned import own_step_s, question
from experiments.sailor.predict import KNOWN_BEFORE, ProfiledCosts
from experiments.sailor.published import judged_plans, model, scenarios
from jaxpipe.search.layout import closed_form_s, layout_step
from jaxpipe.search.layout.candidates import candidates
from jaxpipe.simulate import simulate_ends


@pytest.mark.parametrize("name", ["fig7-16", "fig8b-8+24", "fig10-40"])
def test_the_closed_form_is_near_the_simulator(name: str):
    scenario = scenarios()[name]
    costs = ProfiledCosts(model(scenario.model), KNOWN_BEFORE)
    compared = 0
    for each in judged_plans():
        replicas = {sum(run.replicas for run in stage) for stage in each.layout.stages}
        if each.scenario != name or len(replicas) > 1:
            continue
        simulated_s = own_step_s(each.layout, scenario, blocking=False)
        closed_s = closed_form_s(each.layout, costs, batch=scenario.batch)
        # One stage: computes, a ring and an update, one after the other.
        within = 1e-9 if each.layout.num_stages == 1 else 0.1
        assert closed_s == pytest.approx(simulated_s, rel=within), each
        compared += 1
    assert compared


def test_no_layout_is_faster_than_the_bound_of_its_candidate():
    whole = small_task((2, 1))
    short = short_model()
    costs = ProfiledCosts(short, KNOWN_BEFORE)
    parameters = sum(size.parameters for size in short.sizes[1])
    task = replace(whole, costs=Overlapped(whole.costs, costs, parameters), overlaps=True)
    bounds = {
        (each.microbatch, tuple(sorted(each.stages))): each.bound
        for group in candidates(task).values()
        for each in group
    }
    checked = 0
    for layout in all_layouts(task):
        key = (layout.microbatch, tuple(sorted(layout.stages)))
        if key in bounds:
            step = layout_step(layout, costs, batch=task.batch, blocking=False)
            assert simulate_ends(step).last_s >= bounds[key] * (1 - 1e-12), layout
            checked += 1
    assert checked > 50


def test_a_search_finds_no_worse_than_the_others_and_no_better_than_its_floor():
    name = "fig7-16"
    asked = question(name)
    found, objective = own_search(asked, limit_s=1.0)
    others = [
        own_step_s(each.layout, asked.scenario, blocking=False)
        for each in judged_plans()
        if each.scenario == name and each.layout.num_stages == 1
    ]
    assert objective == own_step_s(found.layout, asked.scenario, blocking=False)
    assert objective <= min(others) * (1 + 1e-9)
    assert found.floor <= objective
