"""The search over rematerialisations: the best that fits, and what each costs in the simulator."""

from dataclasses import replace
from pathlib import Path

import pytest

from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.models import preset_config
from jaxpipe.plan import default_plan
from jaxpipe.propose.proposal import Proposal, propose, task_and_conditions
from jaxpipe.propose.remat_search import RematTrial, best_remat
from jaxpipe.propose.request import PlanRequest
from jaxpipe.schedule import Remat
from jaxpipe.simulate import plan_step_s
from tests.plan_section import decided

REQUEST = PlanRequest(cluster="two-region", model="gpt2", batch=8, budget=3.0, search_remat=True)


def chosen(costs: dict[Remat, float]) -> tuple[Remat, float, tuple[RematTrial, ...]]:
    """Return the choice between policies of these costs; those without one do not fit."""

    def found(request: PlanRequest) -> float:
        assert request.remat is not None
        assert request.budget == REQUEST.budget / 3
        if request.remat not in costs:
            raise PlanError("too large")
        return costs[request.remat]

    return best_remat(REQUEST, found, cost=float, step_s=float)


def test_the_best_policy_wins_and_all_are_listed():
    remat, cost, trials = chosen({Remat.NONE: 1.0, Remat.FULL: 2.0})
    assert (remat, cost) == (Remat.NONE, 1.0)
    assert sorted(map(str, trials)) == ["dots does not fit", "full 2 s", "none 1 s"]
    assert chosen(dict.fromkeys(Remat, 1.0))[0] is Remat.NONE
    with pytest.raises(PlanError, match="too large"):
        chosen({})


@pytest.mark.parametrize("changes", [{"remat": Remat.DOTS}, {"profile": Path("a.json")}])
def test_a_policy_that_is_given_is_not_searched(changes: dict[str, object]):
    with pytest.raises(ConfigError, match="a search tries all rematerialisations: `--"):
        replace(REQUEST, **changes)  # pyright: ignore[reportArgumentType]


def test_full_rematerialisation_is_one_forward_more_in_the_simulator():
    request = replace(REQUEST, search_remat=False, cluster="homogeneous:hosts=1", ideal=True)
    model = preset_config("gpt2")
    steps, profiles = {}, {}
    for remat in (Remat.NONE, Remat.FULL):
        task, conditions = task_and_conditions(replace(request, remat=remat), model)
        plan = default_plan(
            decided(stages=1, replicas=1), task.cluster, num_layers=12, batch=8, tied=True
        )
        steps[remat], profiles[remat] = plan_step_s(plan, conditions), task.profile
    forward_s = sum(layer.forward_s for layer in profiles[Remat.FULL].layers)
    more_s = (steps[Remat.FULL] - steps[Remat.NONE]) / 8
    # All products but the last of a layer are computed again.
    assert 0.7 * forward_s < more_s <= forward_s
    kept = profiles[Remat.FULL].layers[0].kept_bytes
    assert kept == profiles[Remat.FULL].activation_bytes


@pytest.mark.slow
@pytest.mark.parametrize(("memory_gib", "remat"), [(1.2, Remat.FULL), (16.0, Remat.NONE)])
def test_memory_decides(tmp_path: Path, memory_gib: float, remat: Remat):
    path = tmp_path / "tight.toml"
    path.write_text(
        f"name = 'tight'\n[[hosts]]\nregion = 'here'\ncount = 4\neffective_tflops = 4\n"
        f"memory_gib = {memory_gib}\n[inside_region]\nlatency_ms = 0.1\nbandwidth_gbps = 10\n"
    )
    request = replace(REQUEST, cluster=str(path), ideal=True, stages=4)

    def found(request: PlanRequest) -> Proposal:
        return propose(request, observe=lambda _: None)

    best, _, trials = best_remat(
        request, found, cost=lambda p: p.split.step_s, step_s=lambda p: p.split.step_s
    )
    assert best is remat
    does_fit = {trial.remat: trial.step_s is not None for trial in trials}
    assert does_fit[Remat.NONE] == (remat is Remat.NONE)
    assert does_fit[Remat.FULL]
