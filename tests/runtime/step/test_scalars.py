"""Scalars and norm at the end of a step: who waits for whom, and that all ranks agree."""

from collections.abc import Callable
from threading import Event, local

import numpy as np
import pytest

from jaxpipe.comm import NORM_TAG, HostOrDeviceArray, Sending, Transport, run_ranks
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.plan import Plan
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.runtime.step.stage_run import StageRun
from jaxpipe.runtime.step.step_totals import StepTotals
from jaxpipe.schedule import Bucket, ScheduleKind, reduce
from tests.oracles.one_device import TOLERANCE, draw_tokens, worst_error
from tests.runtime.pipelined import compile_all, gradients_of_rank, make_plan

pytestmark = pytest.mark.slow

_SCALARS_TAG = reduction_tag(reduce(0, Bucket.SCALARS))
_TIMEOUT_S = 30.0
_LARGE_NORM, _SMALL_NORM = 1e6, 1e-6


class _LateSends(ForwardingTransport):
    """Rank 0 sends messages of a tag only after an event; others call `sends` with their tags."""

    def __init__(
        self, transport: Transport, *, late: int, event: Event, sends: Callable[[int], None]
    ) -> None:
        super().__init__(transport)
        self._late, self._event, self._sends = late, event, sends

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array`."""
        if self.rank != 0:
            self._sends(tag)
        if self.rank == 0 and tag == self._late:
            assert self._event.wait(_TIMEOUT_S), f"others wait for a message with tag {tag}"
        return self._transport.send(array, to=to, tag=tag)


def _plan(*cut: int, num_replicas: int) -> Plan:
    return make_plan(
        schedule=ScheduleKind.GPIPE,
        cut=cut,
        num_replicas=num_replicas,
        num_microbatches=1,
        tied=True,
    )


@pytest.mark.parametrize(
    ("cut", "num_replicas", "sender", "late"),
    [((5,), 2, 1, Bucket.STAGE), ((1, 4), 2, 2, Bucket.STAGE), ((1, 4), 1, 1, Bucket.TIED)],
    ids=["whole replicas", "replicas", "last stage"],
)
def test_scalars_do_not_wait_for_gradients(
    cut: tuple[int, ...], num_replicas: int, sender: int, late: Bucket
) -> None:
    """Rank 0 sends its gradients only once the sender, who sums them with it, has sent scalars."""
    plan, event = _plan(*cut, num_replicas=num_replicas), Event()
    tokens = draw_tokens(num_samples=plan.batch)
    compile_all(plan)

    def work(transport: Transport) -> tuple[dict[str, np.ndarray], StepTotals]:
        def sends(tag: int) -> None:
            if transport.rank == sender and tag == _SCALARS_TAG:
                event.set()

        late_tag = reduction_tag(reduce(0, late))
        slow = _LateSends(transport, late=late_tag, event=event, sends=sends)
        return gradients_of_rank(slow, plan, tokens)

    for gradients, totals in run_ranks(plan.num_ranks, work):
        assert worst_error(gradients, totals, tokens, tied=True) <= TOLERANCE


def test_a_whole_replica_waits_for_no_norm_that_is_not_clipped() -> None:
    """The norm of replica 0 leaves only after the step of rank 1 has ended."""
    plan, event = _plan(5, num_replicas=2), Event()
    tokens = draw_tokens(num_samples=plan.batch)
    compile_all(plan)

    def work(transport: Transport) -> tuple[dict[str, np.ndarray], StepTotals]:
        slow = _LateSends(transport, late=NORM_TAG, event=event, sends=lambda _: None)
        ends = event.set if transport.rank == 1 else lambda: None
        return gradients_of_rank(slow, plan, tokens, clip_norm=_LARGE_NORM, before_close=ends)

    for gradients, totals in run_ranks(2, work):
        assert worst_error(gradients, totals, tokens, tied=True) <= TOLERANCE


@pytest.mark.parametrize("clip_norm", [_LARGE_NORM, _SMALL_NORM])
def test_replicas_clip_by_the_norm_of_the_first(
    clip_norm: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The norms of replicas on unlike devices differ in the last bits: here in the tenth digit."""
    plan, right, replica = _plan(5, num_replicas=2), StageRun.square_norm, local()
    tokens = draw_tokens(num_samples=plan.batch)
    compile_all(plan)
    monkeypatch.setattr(
        StageRun, "square_norm", lambda stage: right(stage) * (1 + 1e-9 * replica.number)
    )

    def work(transport: Transport) -> StepTotals:
        replica.number = transport.rank  # of this thread
        return gradients_of_rank(transport, plan, tokens, clip_norm=clip_norm)[1]

    first, second = run_ranks(2, work)
    is_clipped = clip_norm == _SMALL_NORM
    assert (first.square_norm == second.square_norm) == is_clipped
    assert second.square_norm == pytest.approx(first.square_norm)
    assert second.loss == first.loss
