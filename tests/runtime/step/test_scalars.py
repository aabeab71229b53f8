"""The scalars of a rank leave before gradients whose norm they do not have."""

from threading import Event

import pytest

from jaxpipe.comm import HostOrDeviceArray, Sending, Transport, run_ranks
from jaxpipe.comm.forwarding import ForwardingTransport
from jaxpipe.runtime.step.gradient_sync import reduction_tag
from jaxpipe.schedule import Bucket, ScheduleKind, reduce
from tests.oracles.one_device import TOLERANCE, draw_tokens, worst_error
from tests.runtime.pipelined import compile_all, gradients_of_rank, make_plan

pytestmark = pytest.mark.slow

_SCALARS = reduction_tag(reduce(0, Bucket.SCALARS))
_TIMEOUT_S = 30.0


class _LateGradients(ForwardingTransport):
    """Rank 0 sends the gradients of a bucket only once rank 1 has sent its scalars."""

    def __init__(self, transport: Transport, *, late: Bucket, scalars_left: Event) -> None:
        super().__init__(transport)
        self._late_tag = reduction_tag(reduce(0, late))
        self._scalars_left = scalars_left

    def send(self, array: HostOrDeviceArray, *, to: int, tag: int) -> Sending:
        """Start to send `array`."""
        if self.rank == 1 and tag == _SCALARS:
            self._scalars_left.set()
        if self.rank == 0 and tag == self._late_tag:
            assert self._scalars_left.wait(_TIMEOUT_S), "rank 1 waits for gradients"
        return self._transport.send(array, to=to, tag=tag)


@pytest.mark.parametrize(
    ("cut", "num_replicas", "late"),
    [((5,), 2, Bucket.STAGE), ((1, 4), 1, Bucket.TIED)],
    ids=["second replica", "last stage"],
)
def test_scalars_do_not_wait_for_gradients(
    cut: tuple[int, ...], num_replicas: int, late: Bucket
) -> None:
    plan = make_plan(
        schedule=ScheduleKind.GPIPE,
        cut=cut,
        num_replicas=num_replicas,
        num_microbatches=1,
        tied=True,
    )
    tokens, left = draw_tokens(num_samples=plan.batch), Event()
    compile_all(plan)
    results = run_ranks(
        2,
        lambda transport: gradients_of_rank(
            _LateGradients(transport, late=late, scalars_left=left), plan, tokens
        ),
    )
    for gradients, totals in results:
        assert worst_error(gradients, totals, tokens, tied=True) <= TOLERANCE
