"""tc scripts: each direction by its sender, any number of peers, and the kernel's word."""

import os
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from ipaddress import ip_address

import pytest
from hypothesis import given

from jaxpipe.topo import Cluster, load, without_network
from jaxpipe.topo.shaping import shaped_peers
from jaxpipe.topo.tc import bucket_commands, parse_addresses, tc_scripts
from tests.topo.golden_cases import addresses, scripts
from tests.topo.strategies import clusters


def rates(script: str) -> dict[str, int]:
    """The bit/s that each peer can reach, by its address."""
    ceilings = dict(re.findall(r"classid (1:[0-9a-f]+) htb rate \d+bit ceil (\d+)bit", script))
    found = re.findall(r"dst (\S+)/\d+ flowid (\S+)", script)
    return {address: int(ceilings[class_id]) for address, class_id in found}


def test_links_may_be_asymmetric():
    east = scripts("fluidstack-3region:hosts=1", "east-0").setup
    west = scripts("fluidstack-3region:hosts=1", "west-0").setup
    assert rates(east)["10.0.0.3"] == 150_000_000
    assert rates(west)["10.0.0.1"] == 1_170_000_000


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [1, 2, 17, 250])
def test_each_peer_has_a_class_of_its_own(num_hosts: int):
    setup = scripts(f"homogeneous:hosts={num_hosts}", "here-0").setup
    classes = re.findall(r"class add .* classid (\S+)", setup)
    assert len(classes) == len(set(classes)) == num_hosts - 1
    assert setup.count("netem delay 50ms") == setup.count("filter add") == num_hosts - 1


def test_no_delay_needs_no_netem():
    setup = scripts("case1-datacenter", "datacenter-0").setup
    assert "netem" not in setup
    assert setup.count("pfifo limit 1000") == 7


def test_a_shared_nic_promises_no_more_than_it_has():
    setup = scripts("case2-spot", "datacenter-0").setup
    promised = re.findall(r"parent 1:1 .* rate (\d+)bit ceil 10000000000bit", setup)
    assert len(promised) == 39
    assert sum(map(int, promised)) <= 10_000_000_000


def test_a_host_has_the_bucket_of_its_cluster_file():
    case = load("case2-spot")
    hosts = tuple(replace(host, burst_bytes=60 * 2**20) for host in case.hosts)
    on, size = replace(case, hosts=hosts), 60 * 2**20
    setup = tc_scripts(on, addresses(on), device="eth0")["datacenter-0"].setup
    # The NIC has it; links to peers go a millisecond above their own rate, as without.
    assert re.findall(r"classid (\S+) .* burst 62914560b cburst 62914560b", setup) == ["1:1"]
    words = bucket_commands(on, device="eth0")["datacenter-0"]
    assert words[words.index("burst") + 1] == str(size)


@given(cluster=clusters())
def test_the_hosts_of_a_region_have_even_parts_of_its_trunks(cluster: Cluster):
    known = addresses(cluster)
    for name, script in tc_scripts(cluster, known, device="eth0").items():
        region = next(host.region for host in cluster.hosts if host.name == name)
        num_hosts = sum(host.region == region for host in cluster.hosts)
        for number, trunk in enumerate(cluster.trunks):
            class_id = f"1:{0xF000 + number:x}"
            promises = re.findall(rf"classid {class_id} htb rate (\d+)bit", script.setup)
            assert len(promises) == (trunk.source == region)
            children = re.findall(rf"parent {class_id} classid \S+ htb rate (\d+)bit", script.setup)
            for promise in promises:
                part = 8 * trunk.bytes_per_s / num_hosts
                assert int(promise) <= part + 1
                # Each is rounded to a bit.
                assert sum(map(int, children)) <= int(promise) + len(children)
                there = [host for host in cluster.hosts if host.region == trunk.destination]
                assert len(children) == len(there)


@given(cluster=clusters())
def test_every_host_shapes_what_goes_to_every_other(cluster: Cluster):
    known = addresses(cluster)
    for name, script in tc_scripts(cluster, known, device="eth0").items():
        peers = {peer.host: peer for peer in shaped_peers(cluster, name)}
        assert set(peers) == set(known) - {name}
        expected = {str(known[p.host]): round(p.bytes_per_s * 8) for p in peers.values()}
        assert rates(script.setup) == expected


def test_addresses_are_read():
    text = "# the lab\nn1 10.0.0.1\n\nn2 fd00::2 # new\n"
    assert parse_addresses(text) == {"n1": ip_address("10.0.0.1"), "n2": ip_address("fd00::2")}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("n1", "line 1 of the addresses must be a host and an address"),
        ("n1 10.0.0.1\nn1 10.0.0.2", "line 2 of the addresses: 'n1' has one already"),
        ("n1 10.0.0.1; reboot", "line 1 of the addresses must be"),
        ("n1 10.0.0.256", "line 1 of the addresses must be a host and an address such as"),
        ("n1 fd00::1%$(reboot)", "line 1 of the addresses must be a host and an address such as"),
    ],
)
def test_wrong_addresses_are_refused(text: str, words: str):
    with pytest.raises(ValueError, match=words):
        parse_addresses(text)


@pytest.mark.parametrize(
    ("text", "device", "words"),
    [
        (
            "here-0 10.0.0.1",
            "eth0",
            r"'here-1' has no address \(1 hosts have none\); add a line such as",
        ),
        ("here-0 10.0.0.1\nhere-1 10.0.0.1", "eth0", "is the address of 'here-0' and of 'here-1'"),
        ("here-0 10.0.0.1\nhere-1 10.0.0.2\nb 10.0.0.3", "eth0", "has no host 'b': it has"),
        (
            "here-0 10.0.0.1\nhere-1 10.0.0.2",
            "eth0; reboot",
            "`device` must be a network interface",
        ),
        ("here-0 10.0.0.1\nhere-1 10.0.0.2", "-force", "`device` must be a network interface"),
    ],
)
def test_hosts_and_addresses_must_match(text: str, device: str, words: str):
    with pytest.raises(ValueError, match=words):
        tc_scripts(load("homogeneous:hosts=2"), parse_addresses(text), device=device)


def test_a_link_without_a_limit_cannot_be_shaped():
    with pytest.raises(ValueError, match="from 'here-0' to 'here-1' is infinite: limit it"):
        shaped_peers(without_network(load("homogeneous:hosts=2")), "here-0")


def test_an_unknown_host_has_no_peers():
    with pytest.raises(ValueError, match="cluster 'two-region' has no host 'tokyo-0'"):
        shaped_peers(load("two-region"), "tokyo-0")


def in_a_namespace(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script on a network of its own, which ends with it."""
    return subprocess.run(
        ["unshare", "--net", "sh", "-c", script], capture_output=True, text=True, check=False
    )


def needs(qdisc: str) -> None:
    """Skip unless this user may shape a network, and this kernel has the discipline."""
    if os.geteuid() or not (shutil.which("tc") and shutil.which("unshare")):
        pytest.skip("shaping a network needs root, tc and unshare")
    tried = in_a_namespace(f"tc qdisc add dev lo root handle 1: {qdisc}")
    if tried.returncode:
        pytest.skip(f"this kernel has no {qdisc}: {tried.stderr.strip()}")


@pytest.mark.root
@pytest.mark.parametrize(
    ("name", "host", "qdisc"),
    [
        ("case1-datacenter", "datacenter-0", "htb"),
        ("case2-spot", "datacenter-0", "htb"),
        ("case5-worldwide", "tokyo-0", "netem delay 1ms"),
        ("laptop", "here-0", "htb"),
    ],
)
def test_the_kernel_takes_the_scripts_twice_and_undoes_them(name: str, host: str, qdisc: str):
    needs("htb")
    needs(qdisc)
    cluster = load(name)
    script = tc_scripts(cluster, addresses(cluster), device="lo")[host]
    count = "tc class show dev lo | wc -l"
    done = in_a_namespace(
        f"set -e\n{script.setup}\n{script.setup}\n{count}\n{script.undo}\n{count}"
    )
    assert (done.returncode, done.stderr) == (0, "")
    num_classes = script.setup.count("tc class add")
    assert done.stdout.split() == [str(num_classes), "0"]


def test_a_bucket_limits_a_nic_or_the_fastest_link() -> None:
    stated = bucket_commands(load("case2-spot"), device="eth0")["datacenter-0"]
    assert " ".join(stated).startswith("qdisc replace dev eth0 root tbf rate 10000000000bit ")
    # No NIC is stated here.
    cluster = load("homogeneous:hosts=3,bandwidth_gbps=2")
    assert "2000000000bit" in bucket_commands(cluster, device="eth0")["here-2"]


@pytest.mark.root
def test_the_kernel_takes_a_bucket_twice() -> None:
    needs("tbf rate 1gbit burst 65536 latency 200ms")
    cluster = load("homogeneous:hosts=2,delay_ms=0,bandwidth_gbps=20")
    command = shlex.join(("tc", *bucket_commands(cluster, device="lo")["here-0"]))
    done = in_a_namespace(f"set -e; {command}; {command}; tc qdisc show dev lo")
    assert not done.returncode, done.stderr
    assert "tbf" in done.stdout
    assert "rate 20Gbit" in done.stdout
