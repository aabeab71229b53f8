"""Settings of TCP are judged by the links between hosts, measured or of a file."""

from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.doctor import Finding, Health, RankFacts, judge_job, judge_links_of
from jaxpipe.topo.host_tcp import TcpSettings

_DEFAULT = TcpSettings(
    slow_start_after_idle=True,
    congestion_control="cubic",
    largest_receive_bytes=6 * 2**20,
    largest_send_bytes=4 * 2**20,
)
_FIXED = replace(
    _DEFAULT, slow_start_after_idle=False, largest_receive_bytes=2**28, largest_send_bytes=2**28
)
_ZERO = RankFacts(
    rank=0,
    num_ranks=2,
    host="a",
    cores=(0,),
    versions={"jax": "0.12.0"},
    devices=("cpu",),
    tcp=_DEFAULT,
)
_FAR = replace(_ZERO, rank=1, host="b", cores=(1,), latency_s=0.067, bytes_per_s=125e6)


def about_tcp(findings: tuple[Finding, ...]) -> list[Finding]:
    return [finding for finding in findings if finding.about == "TCP"]


def test_far_hosts_with_the_defaults_of_linux_get_two_commands():
    idle, buffers = about_tcp(judge_job([_ZERO, _FAR], num_started=2))
    assert (idle.health, buffers.health) == (Health.SLOW, Health.SLOW)
    assert "starts with 14.5 kB in a round trip of 134 ms" in idle.message
    assert idle.fix.endswith("sysctl -w net.ipv4.tcp_slow_start_after_idle=0")
    # 0.134 s of 125 MB/s are 16.75 MB, twice that are 32 MiB.
    assert "needs 31.9 MiB of buffers" in buffers.message
    assert 'net.ipv4.tcp_wmem="4096 16384 67108864"' in buffers.fix


def test_hosts_with_other_settings_are_well():
    fixed = [replace(facts, tcp=_FIXED) for facts in (_ZERO, _FAR)]
    (found,) = about_tcp(judge_job(fixed, num_started=2))
    assert (found.health, found.fix) == (Health.OK, "")
    # One host that was forgotten is enough.
    assert len(about_tcp(judge_job([fixed[0], _FAR], num_started=2))) == 2


@pytest.mark.parametrize("changes", [{"host": "a"}, {"latency_s": None}, {"tcp": None}])
def test_nothing_is_said_of_links_that_nobody_measured(changes: dict[str, object]):
    ranks = [replace(_ZERO, tcp=changes.get("tcp", _DEFAULT)), replace(_FAR, **changes)]  # type: ignore[arg-type]
    assert about_tcp(judge_job(ranks, num_started=2)) == []


def test_the_links_of_a_file_count_in_both_directions():
    both = judge_links_of(topo.load("case5-worldwide"), [_DEFAULT])
    assert [finding.health for finding in both] == [Health.SLOW, Health.SLOW]
    (fine,) = judge_links_of(topo.load("case5-worldwide"), [_FIXED])
    assert fine.health is Health.OK
    assert judge_links_of(topo.load("laptop"), [_DEFAULT]) == ()  # one host
