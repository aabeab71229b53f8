"""The clusters that come with jaxpipe, against the published tables, and files of users."""

import csv
import json
from importlib import resources
from pathlib import Path

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.topo.csv_table import csv_rows
from jaxpipe.topo.draw_cluster import draw_cluster
from jaxpipe.topo.parameters import Value, substitute
from jaxpipe.topo.units import gbps_from_bytes_per_s, ms_from_seconds
from jaxpipe.topo.write import cluster_toml


def link(cluster: topo.Cluster, source: str, destination: str) -> tuple[float, float]:
    """The ms and Gbps from the first device of a region to the last of another, or the same."""
    regions = [device.region for device in cluster.devices]
    last = len(regions) - 1 - regions[::-1].index(destination)
    found = cluster.link(regions.index(source), last)
    return ms_from_seconds(found.latency_s), gbps_from_bytes_per_s(found.bandwidth_bytes_per_s)


@pytest.mark.parametrize(
    ("name", "num_devices", "num_hosts"),
    [
        ("aws", 10, 10),
        ("case1-datacenter", 64, 8),
        ("case2-spot", 64, 40),
        ("case3-universities", 64, 64),
        ("case4-regional", 64, 64),
        ("case5-worldwide", 64, 64),
        ("fluidstack-2region", 32, 16),
        ("fluidstack-3region", 48, 24),
        ("gcp-five-zones", 40, 10),
        ("gcp-two-zones", 32, 8),
        ("homogeneous", 64, 64),
        ("laptop", 16, 1),
        ("two-region", 4, 4),
    ],
)
def test_every_cluster_has_its_size(name: str, num_devices: int, num_hosts: int):
    cluster = topo.load(name)
    assert (cluster.name, len(cluster), len(cluster.hosts)) == (name, num_devices, num_hosts)


@pytest.mark.parametrize("name", topo.names())
def test_every_cluster_is_symmetric_unless_its_links_have_directions(name: str):
    cluster = topo.load(name)
    directed = name.startswith("fluidstack")
    assert np.array_equal(cluster.latency_s, cluster.latency_s.T)
    bandwidth = cluster.bandwidth_bytes_per_s
    assert np.array_equal(bandwidth, bandwidth.T) is not directed
    assert (cluster.alone_bytes_per_s >= bandwidth).all()


@pytest.mark.parametrize(
    ("name", "source", "destination", "ms", "gbps"),
    [
        ("case3-universities", "ohio", "ohio", 1, 5),
        ("case3-universities", "virginia", "ohio", 11, 1.12),
        ("case4-regional", "oregon", "oregon", 10, 2),
        ("case4-regional:inside_ms=5", "oregon", "oregon", 5, 2),
        ("case4-regional", "virginia", "oregon", 67, 1.15),
        ("case4-regional", "california", "virginia", 59, 1.05),
        ("case4-regional", "oregon", "california", 12, 1.25),
        ("case4-regional", "ohio", "california", 52, 1.02),
        ("case5-worldwide", "seoul", "seoul", 10, 2),
        ("case5-worldwide:inside_ms=5", "seoul", "seoul", 5, 2),
        ("case5-worldwide", "tokyo", "london", 210, 0.366),
        ("case5-worldwide", "ireland", "frankfurt", 24, 1.08),
        ("aws:regions=sydney+singapore,hosts=3", "sydney", "singapore", 92, 0.816),
        ("fluidstack-3region", "east", "west", 60.2, 0.15),
        ("fluidstack-3region", "west", "east", 60.2, 1.17),
        ("fluidstack-2region", "middle", "east", 21.8, 3.04),
        ("homogeneous", "here", "here", 50, 1),
        ("homogeneous:hosts=3,delay_ms=2.5,bandwidth_gbps=8", "here", "here", 2.5, 8),
    ],
)
def test_links_are_the_published_ones(
    name: str, source: str, destination: str, ms: float, gbps: float
):
    assert link(topo.load(name), source, destination) == pytest.approx((ms, gbps))


@pytest.mark.parametrize(
    ("name", "share", "nic"), [("case1-datacenter", 3.125, 25), ("case2-spot", 1.25, 10)]
)
def test_a_pair_counts_on_an_eighth_of_the_nic_that_it_has_alone(
    name: str, share: float, nic: float
):
    cluster = topo.load(name)
    first, last = 0, len(cluster) - 1
    assert gbps_from_bytes_per_s(cluster.bandwidth_bytes_per_s[first, last]) == share
    assert gbps_from_bytes_per_s(cluster.alone_bytes_per_s[first, last]) == nic
    assert gbps_from_bytes_per_s(cluster.bandwidth_bytes_per_s[0, 1]) == 100
    for host in cluster.hosts:
        assert gbps_from_bytes_per_s(host.egress_bytes_per_s) == nic
        assert gbps_from_bytes_per_s(host.ingress_bytes_per_s) == nic


def test_the_table_of_regions_joins_each_two_of_ten_once():
    text = (resources.files("jaxpipe.topo") / "data" / "aws_regions.csv").read_text()
    rows = csv_rows(text)
    pairs = {frozenset((row["region_a"], row["region_b"])) for row in rows}
    assert len(rows) == len(pairs) == 45
    assert len(frozenset[str]().union(*pairs)) == 10


def test_the_published_order_of_devices_is_kept():
    hosts = [device.host for device in topo.load("case2-spot").devices]
    assert [hosts.count(host) for host in dict.fromkeys(hosts)] == [4] * 8 + [1] * 32
    assert topo.load("case4-regional").regions == ("virginia", "oregon", "california", "ohio")


@pytest.mark.parametrize("num_hosts", [1, 2, 7])
def test_parameters_set_sizes(num_hosts: int):
    cluster = topo.load(f"aws:regions=ohio,hosts={num_hosts},devices=2,gpu=H100")
    assert (len(cluster.hosts), len(cluster)) == (num_hosts, 2 * num_hosts)
    assert {device.gpu for device in cluster.devices} == {topo.gpu("H100")}


def test_the_name_says_the_parameters_and_loads_again():
    name = "homogeneous:hosts=3,delay_ms=7"
    assert topo.load(topo.load(name).name).name == name


@pytest.mark.parametrize(("text", "value"), [("true", True), ("false", False)])
@pytest.mark.parametrize("default", [True, False])
def test_a_parameter_may_be_a_flag(default: bool, text: str, value: bool):
    file: dict[str, Value] = {"parameters": {"flag": default}, "given": "$flag"}
    assert substitute(file, {}) == {"given": default}
    assert substitute(file, {"flag": text})["given"] is value
    with pytest.raises(ValueError, match="`flag` must be true or false, not '1'"):
        substitute(file, {"flag": "1"})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "homogenous",
            "no cluster 'homogenous': did you mean 'homogeneous'. .* or one of this-machine, alpa-",
        ),
        ("homogeneous:n=3", "no parameter `n`: choose from hosts, devices, gpu, delay_ms"),
        ("homogeneous:hosts=few", "`hosts` must be a number like 64, not 'few'"),
        ("homogeneous:hosts", "'hosts' must be settings, for example `hosts=4,delay_ms=20`"),
        ("homogeneous:hosts=0", "`count` must be at least 1, is 0"),
        ("homogeneous:hosts=99999", "`hosts` has 99,999 devices, .* at most 16,384: lower `count`"),
        ("x" * 300, "no cluster 'xxx"),
        ("homogeneous:delay_ms=-1", r"`latency_ms` must be from 0 to 1e\+06, is -1"),
        ("homogeneous:bandwidth_gbps=0", r"`bandwidth_gbps` must be from 1e-09 to 1e\+09, is 0"),
        ("homogeneous:bandwidth_gbps=inf", r"`bandwidth_gbps` must be from .* to 1e\+09, is inf"),
        ("homogeneous:bandwidth_gbps=1e-10", "`bandwidth_gbps` must be from 1e-09 to .*, is 1e-10"),
        ("two-region:hosts=1", "no parameter `hosts`: choose from none"),
        ("aws:regions=ohio+paris", "`links` must have an entry from 'ohio' to 'paris'"),
        ("aws:gpu=H900", "`gpu` must be a known type, not 'H900'"),
    ],
)
def test_wrong_names_are_refused(name: str, words: str):
    with pytest.raises(ValueError, match=words):
        topo.load(name)


HOSTS = 'name = "mine"\n[[hosts]]\nregion = "lab"\ncount = 2\n'
OTHER = '[[hosts]]\nregion = "moon"\n'


def linked(**regions: object) -> str:
    named = "".join(f"{key} = {json.dumps(value)}\n" for key, value in regions.items())
    return f"[[links]]\n{named}latency_ms = 1\nbandwidth_gbps = 1\n"


LINK = "latency_ms = 1\nbandwidth_gbps = 1\n"
LINKED = f"{HOSTS}{OTHER}[inside_region]\n{LINK}[across_regions]\n{LINK}"


def trunk(capacity_gbps: float, *between: str) -> str:
    return f"[[trunks]]\nbetween = {json.dumps(between)}\ncapacity_gbps = {capacity_gbps}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('name = "mine"\nhosts = []\n', "`hosts` must have at least one device: add a host"),
        (HOSTS, "`links` must have an entry from 'lab' to 'lab': add one, or `inside_region`"),
        (HOSTS + "[hostss]\n", "no field `hostss`: give name, hosts, links"),
        (HOSTS + "[inside_region]\nspeed = 3\n", "no field `inside_region.speed`: give "),
        ('link_table = "no.csv"\n' + HOSTS, "file 'no.csv' is missing"),
        (HOSTS + 'link_table = "a.csv"\n', "no field `hosts.link_table`: give region"),
        (HOSTS + "[inside_region]\nlatency_ms = 1\n", "the field `bandwidth_gbps` is missing"),
        (
            HOSTS + "[inside_region]\nlatency_ms = 1\nbandwidth_gbps = 2\nalone_gbps = 1\n",
            "`alone_gbps` must be at least `bandwidth_gbps` = 2.0, is 1.0",
        ),
        (HOSTS + "[[links]]\nlatency_ms = 1\nbandwidth_gbps = 1\n", "neither `between` nor"),
        (
            LINKED + "[[trunks]]\ncapacity_gbps = 1\n",
            "`trunks` has an entry with neither `between`",
        ),
        (LINKED + "[[trunks]]\nbandwidth_gbps = 1\n", "no field `trunks.bandwidth_gbps`"),
        (LINKED + trunk(0, "lab", "moon"), "`capacity_gbps` must be from 1e-09 to 1e\\+09, is 0"),
        (LINKED + trunk(1, "lab", "mon"), "`trunks` must name regions of `hosts`: .* 'mon'"),
        (LINKED + trunk(1, "lab", "lab"), "`trunks` must join two regions, not 'lab' with itself"),
        (LINKED + 2 * trunk(1, "lab", "moon"), "`trunks` must have one entry for each direction"),
        (HOSTS + 'gpu = "$kind"\n', "'\\$kind' must refer to one of the `parameters`: none"),
        (HOSTS + 'name = "one"\n', "`name` is for one host; 'one' stands for more"),
        (HOSTS + 'hostfile = "hosts"\n', "`hostfile` and `slurm_topology` list the hosts"),
        (
            HOSTS + '[pairs]\nlatency_s = "no.csv"\nbandwidth_bytes_per_s = "no.csv"\n',
            "file 'no.csv' is missing in the folder of the cluster",
        ),
        (
            HOSTS + "[pairs]\nlatency_s = [[0, 1], [1]]\nbandwidth_bytes_per_s = [[1, 1], [1, 1]]",
            "rows must be equally long, not \\[2, 1\\]",
        ),
        (
            HOSTS + "[pairs]\nlatency_s = [[0]]\nbandwidth_bytes_per_s = [[1]]\n"
            "[inside_region]\nlatency_ms = 1\nbandwidth_gbps = 1",
            "`pairs` has all links: leave out `inside_region`",
        ),
        (
            HOSTS + "[pairs]\nlatency_s = [[0]]\nbandwidth_bytes_per_s = [[1]]\n"
            "[across_regions]\nlatency_ms = 1\nbandwidth_gbps = 1",
            "`pairs` has all links: leave out `across_regions`",
        ),
        (
            HOSTS + linked(between=["lab", "lba"]),
            "no host is in 'lba'; did you mean 'lab'. choose from lab",
        ),
        (
            HOSTS + linked(source="moon", destination="lab"),
            "`links` must name regions of `hosts`: no host is in 'moon'; choose from lab",
        ),
        (
            HOSTS + linked(between=["lab", "lab"]) + linked(source="lab", destination="lab"),
            "one entry for each direction: 'lab' to 'lab' has two; remove one",
        ),
        (
            HOSTS + OTHER + linked(between=["lab", "moon"]) + linked(between=["moon", "lab"]),
            "one entry for each direction: 'moon' to 'lab' has two; remove one",
        ),
        ("name = [", "mine.toml"),
    ],
)
def test_wrong_files_are_refused(tmp_path: Path, text: str, words: str):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=words):
        topo.load(str(path))


def test_matrices_may_lie_beside_the_file(tmp_path: Path):
    latency, bandwidth = [[0.0, 0.01], [0.02, 0.0]], np.array([[np.inf, 1e9], [2e9, np.inf]])
    with (tmp_path / "latency.csv").open("w", newline="") as file:
        csv.writer(file).writerows(latency)
    np.save(tmp_path / "bandwidth.npy", bandwidth)
    pairs = '[pairs]\nlatency_s = "latency.csv"\nbandwidth_bytes_per_s = "bandwidth.npy"\n'
    path = tmp_path / "mine.toml"
    path.write_text(HOSTS + pairs)
    cluster = topo.load(str(path))
    assert np.array_equal(cluster.latency_s, latency)
    assert np.array_equal(cluster.bandwidth_bytes_per_s, bandwidth)


SPEEDS = """
[inside_region]
latency_ms = 1
bandwidth_gbps = 10
[across_regions]
latency_ms = 2
bandwidth_gbps = 5
"""
LEAVES = (
    "SwitchName=leaf0 Nodes=n[1-2]\nSwitchName=leaf1 Nodes=n3\nSwitchName=top Switches=leaf[0-1]\n"
)


def test_hosts_may_be_listed_by_mpi_and_slurm(tmp_path: Path):
    (tmp_path / "hosts").write_text("n3 slots=2\nn1 slots=1\n")
    (tmp_path / "topology.conf").write_text(LEAVES)
    path = tmp_path / "mine.toml"
    group = '[[hosts]]\nhostfile = "hosts"\nslurm_topology = "topology.conf"\n'
    path.write_text(f'name = "mine"\n{group}{SPEEDS}')
    cluster = topo.load(str(path))
    assert [d.name for d in cluster.devices] == ["n3:0", "n3:1", "n1:0"]
    assert cluster.regions == ("leaf1", "leaf0")
    assert link(cluster, "leaf1", "leaf0") == (2, 5)


def test_slurm_alone_lists_all_its_nodes(tmp_path: Path):
    (tmp_path / "topology.conf").write_text(LEAVES)
    path = tmp_path / "mine.toml"
    path.write_text(
        f'name = "mine"\n[[hosts]]\nslurm_topology = "topology.conf"\ndevices = 2\n{SPEEDS}'
    )
    cluster = topo.load(str(path))
    assert [host.name for host in cluster.hosts] == ["n1", "n2", "n3"]
    assert len(cluster) == 6


def test_a_host_that_slurm_does_not_know_is_refused(tmp_path: Path):
    (tmp_path / "hosts").write_text("n9\n")
    (tmp_path / "topology.conf").write_text(LEAVES)
    path = tmp_path / "mine.toml"
    group = '[[hosts]]\nhostfile = "hosts"\nslurm_topology = "topology.conf"\n'
    path.write_text(f'name = "mine"\n{group}{SPEEDS}')
    with pytest.raises(ValueError, match="host 'n9' of `hostfile` 'hosts' is missing in"):
        topo.load(str(path))


NVIDIA = "     GPU0 GPU1 CPU Affinity\nGPU0  X   NV2  0-15\nGPU1 NV2   X   0-15\n"


def described(tmp_path: Path, *lines: str) -> topo.Device:
    path = tmp_path / "mine.toml"
    path.write_text("\n".join(('name = "mine"\n[[hosts]]', *lines)))
    return topo.load(str(path)).devices[0]


def test_any_gpu_can_be_described(tmp_path: Path):
    device = described(tmp_path, 'gpu = "RX-9070"', "memory_gib = 24", "tflops = 82.6")
    assert device.gpu is not None
    assert (device.gpu.name, device.memory_bytes) == ("RX-9070", 24 * 2**30)
    assert {device.peak(precision) for precision in topo.Precision} == {82.6e12}
    assert device.flops_per_s(topo.Precision.BF16) == 82.6e12
    assert "1 RX-9070" in draw_cluster(topo.load(str(tmp_path / "mine.toml")))


def test_a_gpu_may_be_described_by_what_it_reaches(tmp_path: Path):
    device = described(tmp_path, 'gpu = "B300"', "memory_gib = 180", "effective_tflops = 900")
    assert (device.memory_bytes, device.flops_per_s(topo.Precision.BF16)) == (180 * 2**30, 900e12)


def test_a_description_wins_over_the_table(tmp_path: Path):
    part = described(tmp_path, 'gpu = "A100-80GB"', "memory_gib = 20", "tflops = 44")
    assert (part.memory_bytes, part.peak(topo.Precision.TF32)) == (20 * 2**30, 44e12)
    memory = described(tmp_path, 'gpu = "A100-80GB"', "memory_gib = 20")
    assert (memory.memory_bytes, memory.peak(topo.Precision.TF32)) == (20 * 2**30, 156e12)


def test_prices_are_read_and_written(tmp_path: Path):
    lines = ("tflops = 1", "dollars_per_hour = 2.5", "egress_dollars_per_gb = 0")
    device = described(tmp_path, *lines)
    assert (device.dollars_per_hour, device.egress_dollars_per_gb) == (2.5, 0)
    text = cluster_toml(topo.load(str(tmp_path / "mine.toml")))
    (tmp_path / "again.toml").write_text(text)
    assert topo.load(str(tmp_path / "again.toml")).devices == (device,)
    with pytest.raises(ValueError, match=r"`dollars_per_hour` must be from 0 to 1e\+06"):
        described(tmp_path, "dollars_per_hour = -1")


@pytest.mark.parametrize(
    ("name", "tflops"),
    [("RTX-4090", 165.2), ("L40S", 362), ("A10", 125), ("B200", 2250), ("MI300X", 1307.4)],
)
def test_gpus_that_people_own_are_listed(name: str, tflops: float):
    assert topo.gpu(name).peak_flops_per_s(topo.Precision.BF16) == pytest.approx(1e12 * tflops)


def test_devices_without_a_type_may_have_memory_and_speed(tmp_path: Path):
    device = described(tmp_path, "memory_gib = 8", "tflops = 2")
    assert (device.gpu, device.memory_bytes) == (None, 8 * 2**30)
    assert device.flops_per_s(topo.Precision.FP32) == 2e12


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        (('gpu = "RTX4090"',), "choose from .*, or describe it with `memory_gib` and `tflops`"),
        (('gpu = "RTX4090"', "memory_gib = 24"), "describe it with `memory_gib` and `tflops`"),
        (('gpu = "RTX4090"', "tflops = 24"), "describe it with `memory_gib` and `tflops`"),
        (("memory_gib = 0",), "`memory_gib` must be from 0.000976562 to .*, is 0"),
        (("tflops = inf",), r"`tflops` must be above 0 and at most 1e\+06, is inf"),
        (("effective_tflops = nan",), "`effective_tflops` must be above 0 and at most .*, is nan"),
        (("memory_gib = 1e-9",), "`memory_gib` must be from 0.000976562 to .*, is 1e-09"),
        (("nic_gbps = 0",), "`nic_gbps` must be from 1e-09 to .*, is 0"),
        (("egress_gbps = 0",), "`egress_gbps` must be from 1e-09 to .*, is 0"),
        (("burst_mib = 4096", "nic_gbps = 1"), "`burst_mib` must be from 0 to 4095, is 4096"),
        (("burst_mib = 60",), "`burst_mib` of host .* give `nic_gbps` or `egress_gbps`"),
        (("relative_speed = 0",), "`relative_speed` must be from 0.001 to 1000, is 0"),
        (
            ("relative_speed = 2", "effective_tflops = 1"),
            "`relative_speed` and `effective_tflops` exclude each other",
        ),
        (("relative_speed = 2", 'gpu = "A40"'), "`relative_speed` and `gpu` exclude each other"),
        (("ingress_gbps = -1",), "`ingress_gbps` must be from 1e-09 to .*, is -1"),
        (
            ('gpu = "a\\nb"', "memory_gib = 1", "tflops = 1"),
            "`gpu` must be a name of letters, digits",
        ),
    ],
)
def test_wrong_descriptions_are_refused(tmp_path: Path, lines: tuple[str, ...], words: str):
    with pytest.raises(ValueError, match=words):
        described(tmp_path, *lines)


def test_links_inside_a_host_may_come_from_nvidia_smi(tmp_path: Path):
    (tmp_path / "gpus.txt").write_text(NVIDIA)
    path = tmp_path / "mine.toml"
    path.write_text(HOSTS + f'devices = 2\nnvidia_topology = "gpus.txt"\n{SPEEDS}')
    cluster = topo.load(str(path))
    gbps = gbps_from_bytes_per_s(1) * cluster.bandwidth_bytes_per_s
    assert (gbps[0, 1], gbps[2, 3], gbps[0, 2]) == (400, 400, 10)


def test_more_devices_than_nvidia_smi_tells_of_are_refused(tmp_path: Path):
    (tmp_path / "gpus.txt").write_text(NVIDIA)
    path = tmp_path / "mine.toml"
    path.write_text(HOSTS + f'devices = 3\nnvidia_topology = "gpus.txt"\n{SPEEDS}')
    with pytest.raises(ValueError, match=r"'gpus.txt' has 2 GPUs, but host 'lab-0' has 3 devices"):
        topo.load(str(path))
