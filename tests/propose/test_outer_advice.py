"""Whether an outer loop pays: as closed forms say on case 5, where it loses, and where it wins."""

import pytest

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind, CodecKind
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.plan import Plan, default_plan
from jaxpipe.plan.cost import slowness
from jaxpipe.propose.costed import costed
from jaxpipe.propose.outer_advice import OuterAdvice, advice_lines, outer_advice
from jaxpipe.propose.query import SIMULATED_CHUNK_BYTES
from jaxpipe.runtime.run_config import MatmulPrecision
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.simulate import Conditions
from tests.plan_section import decided

pytestmark = pytest.mark.slow

CASE_5 = topo.load("case5-worldwide")
MODEL = GptConfig(**load_preset("gpt-xl-24"))


@pytest.fixture(scope="module")
def conditions() -> Conditions:
    known = costed(
        MODEL,
        CASE_5,
        remat=Remat.FULL,
        profile=None,
        tflops=None,
        matmul_precision=MatmulPrecision.TF32,
    )
    return Conditions(
        cluster=known.cluster,
        profile=known.profile,
        slow=slowness(known.cluster, known.profile, known.precision),
        gradient_bytes=2,
        overheads=known.overheads(chunk_bytes=SIMULATED_CHUNK_BYTES, ideal=False, keep_warm=True),
    )


def plan_of(*, batch: int) -> Plan:
    """Return a pipeline in each of the eight regions, with deep warm-ups."""
    config = decided(
        cluster="case5-worldwide",
        stages=8,
        replicas=8,
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
        all_reduce=AllReduceKind.HIERARCHICAL,
    )
    return default_plan(config, CASE_5, num_layers=24, batch=batch, tied=MODEL.tied)


@pytest.fixture(scope="module")
def advice(conditions: Conditions) -> OuterAdvice:
    found = outer_advice(plan_of(batch=1024), conditions)
    assert found is not None
    return found


def test_on_case_5_at_batch_1024_sums_in_every_step_reach_the_loss_first(advice: OuterAdvice):
    """The closed forms give 14.5 s with sums, 11.7 s with eight islands, and 15.6 s at its loss."""
    sums, islands = advice.choices[0], advice.best_outer
    assert (sums.outer, sums.codec) == (None, CodecKind.NONE)
    assert islands.outer is not None
    assert islands.outer.islands == 8
    assert sums.step_s == pytest.approx(14.5, rel=0.1)
    assert islands.step_s == pytest.approx(11.7, rel=0.1)
    assert advice.fastest_step.step_s < sums.step_s < islands.equal_loss_s
    assert advice.fastest_to_loss.outer is None


def test_smaller_batches_and_slower_links_favour_islands(advice: OuterAdvice):
    assert advice.batch is not None
    assert advice.bandwidth is not None
    assert 256 <= advice.batch < 1024
    assert 1 / 8 < advice.bandwidth < 1  # eight flows on a link have an eighth each


def test_the_comparison_says_who_wins_and_where(advice: OuterAdvice):
    text = "\n".join(advice_lines(advice, batch=1024))
    assert "sums in every step, int8" in text
    assert "fastest step: 8 islands, every 30 steps" in text
    assert f"wins at equal loss at batches up to about {advice.batch}" in text


def test_a_plan_of_one_replica_has_nothing_to_compare(conditions: Conditions):
    config = decided(cluster="case5-worldwide", stages=8, replicas=1)
    plan = default_plan(config, CASE_5, num_layers=24, batch=8, tied=MODEL.tied)
    assert outer_advice(plan, conditions) is None
    assert "no outer loop was compared" in advice_lines(None, batch=8)[0]
