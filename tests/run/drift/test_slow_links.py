"""Slow links are found by what was measured, once, and only if they stay slow."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.run.drift.slow_links import LinkJudge, SlowLink, corrected
from jaxpipe.runtime.hooks import MeasuredPairs
from jaxpipe.topo.write import cluster_toml
from jaxpipe.trace import PairUse

CLUSTER = topo.load("two-region")
FAR_BYTES_PER_S, FAR_S = 1.4e8, 11e-3
NUM_BYTES = 280_000_000
"""Two seconds over the link between the regions."""


def use(source: int, to: int, *, seconds: float, num_bytes: int = NUM_BYTES) -> PairUse:
    return PairUse(
        source=source,
        to=to,
        traffic=None,
        num_messages=2,
        num_bytes=num_bytes,
        timed_bytes=num_bytes,
        seconds=seconds,
        num_periods=1,
    )


def report(number: int, *pairs: PairUse) -> MeasuredPairs:
    return MeasuredPairs(first_step=10 * number + 1, last_step=10 * number + 10, pairs=pairs)


def judge(*, num_steps: int = 20) -> LinkJudge:
    """Return a judge of ranks 0 and 1 in Ohio, 2 and 3 in Virginia, each on a host of its own."""
    return LinkJudge(CLUSTER, range(4), factor=2.0, num_steps=num_steps)


def test_a_link_is_named_once_when_it_has_been_slow_for_long_enough() -> None:
    judging = judge()
    slow = use(0, 2, seconds=20.0 + FAR_S)
    assert judging.judge(report(0, use(0, 2, seconds=2.02))) == ()
    assert judging.judge(report(1, slow)) == ()
    (found,) = judging.judge(report(2, slow))
    assert (found.source, found.to, found.since_step) == (0, 2, 11)
    assert found.slowdown == pytest.approx(10.0)
    assert found.measured_bytes_per_s == pytest.approx(FAR_BYTES_PER_S / 10)
    assert judging.judge(report(3, slow)) == ()


def test_a_link_that_recovers_in_between_is_not_named() -> None:
    judging = judge()
    slow, fast = use(0, 2, seconds=20.0), use(0, 2, seconds=2.1)
    assert [judging.judge(report(n, each)) for n, each in enumerate((slow, fast, slow))] == [()] * 3


@pytest.mark.parametrize("seconds", [2.0, 3.9])
def test_less_than_the_factor_is_no_drift(seconds: float) -> None:
    judging = judge(num_steps=1)
    assert judging.judge(report(0, use(0, 2, seconds=seconds))) == ()
    assert judging.healthy == {(0, 2)}


def test_small_messages_that_a_busy_machine_notices_late_are_no_drift() -> None:
    judging = judge(num_steps=1)
    assert judging.judge(report(0, use(0, 2, seconds=0.05, num_bytes=1000))) == ()


def test_pairs_that_share_a_nic_may_take_as_long_as_it_makes_them() -> None:
    hosts = tuple(replace(host, egress_bytes_per_s=FAR_BYTES_PER_S) for host in CLUSTER.hosts)
    shared = LinkJudge(replace(CLUSTER, hosts=hosts), range(4), factor=2.0, num_steps=1)
    both = [use(0, 2, seconds=6.0), use(0, 3, seconds=6.0)]
    assert shared.judge(report(0, *both)) == ()
    assert len(judge(num_steps=1).judge(report(0, *both))) == 2


def test_the_measured_cluster_of_a_generated_one_can_be_read_from_a_file(
    tmp_path: Path,
) -> None:
    generated = topo.load("homogeneous:hosts=2,delay_ms=1,bandwidth_gbps=1")
    link = SlowLink(source=0, to=1, planned_bytes_per_s=1.25e8, slowdown=10.0, since_step=1)
    file = tmp_path / "measured.toml"
    file.write_text(cluster_toml(corrected(generated, [link])))
    assert topo.load(str(file)).link(0, 1).bandwidth_bytes_per_s == pytest.approx(1.25e7)


def test_links_inside_a_host_are_not_judged() -> None:
    laptop = topo.load("laptop")
    inside = LinkJudge(laptop, range(2), factor=2.0, num_steps=1)
    assert inside.judge(report(0, use(0, 1, seconds=1e6))) == ()


def test_only_slow_links_and_those_that_were_not_measured_are_corrected() -> None:
    slow = SlowLink(source=0, to=2, planned_bytes_per_s=FAR_BYTES_PER_S, slowdown=4.0, since_step=1)
    found = corrected(CLUSTER, [slow], healthy=[(1, 2), (1, 3)])
    expected = CLUSTER.bandwidth_bytes_per_s.copy()
    expected[0, 2:4] /= 4.0
    np.testing.assert_array_equal(found.bandwidth_bytes_per_s, expected)
    np.testing.assert_array_equal(found.alone_bytes_per_s, expected)
    np.testing.assert_array_equal(found.latency_s, CLUSTER.latency_s)
