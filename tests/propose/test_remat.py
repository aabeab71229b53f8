"""Rematerialisation: what it costs in the simulator, and when the planner chooses it."""

from pathlib import Path

import pytest

from jaxpipe.plan import default_plan
from jaxpipe.propose.options import SearchOptions
from jaxpipe.propose.proposal import propose
from jaxpipe.schedule import Remat
from jaxpipe.simulate import plan_step_s
from tests.plan_section import decided
from tests.propose.asked import asked, known


def test_full_rematerialisation_is_one_forward_more_in_the_simulator():
    config = asked(cluster="homogeneous:hosts=1", model="gpt2", batch=8, paced={"ideal": "true"})
    steps, profiles = {}, {}
    for remat in (Remat.NONE, Remat.FULL):
        task, conditions = known(config, remat)
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
    config = asked(
        cluster=str(path), model="gpt2", batch=8, paced={"ideal": "true"}, plan={"stages": 4}
    )
    proposal = propose(config, SearchOptions(budget=1.0))
    assert proposal.plan.remat is remat
    seconds = {r.name: r.step_s for r in proposal.reasons if r.choice == "remat"}
    if remat is Remat.FULL:
        assert seconds["none"] is None
        assert seconds["full"] is not None
