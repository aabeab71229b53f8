"""Whether an outer loop pays: as closed forms say on case 5, where it loses, and where it wins."""

import pytest

from jaxpipe import topo
from jaxpipe.collective import AllReduceKind
from jaxpipe.models import GptConfig, load_preset
from jaxpipe.plan import Plan, PlanConfig, default_plan
from jaxpipe.plan.cost import slowness
from jaxpipe.propose.costed import costed
from jaxpipe.propose.proposal import CHUNK_BYTES
from jaxpipe.runtime.config import MatmulPrecision, Remat
from jaxpipe.schedule import ScheduleKind
from jaxpipe.simulate import Conditions

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
        overheads=known.overheads(chunk_bytes=CHUNK_BYTES, ideal=False, keep_warm=True),
    )


def plan_of(*, batch: int) -> Plan:
    """Return a pipeline in each of the eight regions, with deep warm-ups."""
    config = PlanConfig(
        cluster="case5-worldwide",
        stages=8,
        replicas=8,
        schedule=ScheduleKind.EAGER_ONE_F_ONE_B,
        all_reduce=AllReduceKind.HIERARCHICAL,
    )
    return default_plan(config, CASE_5, num_layers=24, batch=batch, tied=MODEL.tied)
