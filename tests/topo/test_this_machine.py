"""The cluster of this machine: its cores or GPUs, and the limits of its container."""

import os
from pathlib import Path

import pytest

from jaxpipe import topo
from jaxpipe.topo import machine_limits, this_machine
from jaxpipe.topo.machine_limits import limited_cores, memory_bytes, siblings_of, usable_cores
from jaxpipe.topo.parameters import substitute
from jaxpipe.topo.write import cluster_toml

FOUR = (0, 1, 2, 3)


def write_files(root: Path, files: dict[str, str]) -> Path:
    """Write files below a root of a file system, and return the root."""
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_every_usable_core_is_a_device_of_one_host():
    cluster = topo.load(topo.THIS_MACHINE)
    assert cluster.name == "this-machine"
    assert [host.name for host in cluster.hosts] == ["here"]
    if cluster.devices[0].gpu is None:
        assert len(cluster) == len(usable_cores()) <= len(os.sched_getaffinity(0))
        total = sum(device.memory_bytes or 0 for device in cluster.devices)
        assert total == pytest.approx(memory_bytes(), rel=1e-6)


def test_a_number_of_devices_shares_the_memory():
    cluster = topo.load("this-machine:devices=5")
    assert (cluster.name, len(cluster)) == ("this-machine:devices=5", 5)
    memory = topo.load("this-machine:devices=1").devices[0].memory_bytes
    assert memory is not None
    assert cluster.devices[0].memory_bytes == pytest.approx(memory / 5, rel=1e-6)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ("devices=0", "`devices` must be at least 1"),
        ("devices=many", "`devices` must be a number like"),
        ("devices=999999999", "at most 16,384"),
        ("memory_gib=0", "`memory_gib` must be"),
        ("cores=2", "no parameter `cores`: choose from devices, memory_gib"),
    ],
)
def test_settings_of_this_machine_have_their_ranges(settings: str, words: str):
    with pytest.raises(ValueError, match=words):
        topo.load(f"this-machine:{settings}")


def test_a_file_of_that_name_does_not_replace_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    text = cluster_toml(topo.load("two-region"))
    (tmp_path / "this-machine").write_text(text)
    monkeypatch.chdir(tmp_path)
    assert topo.load("this-machine").regions == ("here",)


def test_hyperthreads_are_one_core(tmp_path: Path):
    cpu = "sys/devices/system/cpu/cpu{}/topology/{}"
    pairs = {0: "0,2", 2: "0,2", 1: "1,3", 3: "1,3"}
    files = {cpu.format(n, "core_cpus_list"): f"{pair}\n" for n, pair in pairs.items()}
    root = write_files(tmp_path, files)
    assert limited_cores(FOUR, root=root) == (0, 1)
    assert limited_cores((2, 3), root=root) == (2, 3)
    assert siblings_of(2, root=root) == {0, 2}
    old = {cpu.format(n, "thread_siblings_list"): "4-5\n" for n in (4, 5)}
    assert limited_cores((4, 5, 6), root=write_files(tmp_path, old)) == (4, 6)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, FOUR),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, FOUR),
        ({"sys/fs/cgroup/cpu.max": "250000 100000\n"}, (0, 1)),
        ({"sys/fs/cgroup/cpu.max": "20000 100000\n"}, (0,)),
        (
            {
                "proc/self/cgroup": "0::/jobs/7\n",
                "sys/fs/cgroup/jobs/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/jobs/7/cpu.max": "max 100000\n",
            },
            (0, 1, 2),
        ),
        (
            {
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            FOUR,
        ),
        (
            {
                "proc/self/cgroup": "3:cpu,cpuacct:/docker/a\n2:memory:/\n",
                "sys/fs/cgroup/cpu/docker/a/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu/docker/a/cpu.cfs_period_us": "50000\n",
            },
            (0, 1),
        ),
    ],
)
def test_the_quota_of_a_container_limits_the_cores(
    tmp_path: Path, files: dict[str, str], expected: tuple[int, ...]
):
    assert limited_cores(FOUR, root=write_files(tmp_path, files)) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal:       1024 kB\n"}, 2**20),
        ({"proc/meminfo": "MemTotal: 1024 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 2**20),
        ({"proc/meminfo": "MemTotal: 1024 kB\n", "sys/fs/cgroup/memory.max": "4096\n"}, 4096),
        (
            {
                "proc/self/cgroup": "2:memory:/a\n",
                "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "8192\n",
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
            },
            8192,
        ),
    ],
)
def test_the_limit_of_a_container_is_the_memory(
    tmp_path: Path, files: dict[str, str], expected: int | None
):
    assert memory_bytes(root=write_files(tmp_path, files)) == expected


def test_the_cores_are_those_of_the_first_call(monkeypatch: pytest.MonkeyPatch):
    machine_limits.usable_cores.cache_clear()
    first = usable_cores()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {first[0]})
    assert usable_cores() == first


def test_gpus_are_devices_of_their_type(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for name in ("nvidia0", "nvidia1", "nvidiactl"):
        (tmp_path / name).touch()
    driver = tmp_path / "gpus"
    write_files(driver, {"0000:01:00.0/information": "Model: \t NVIDIA H100 80GB HBM3\nIRQ: 1\n"})
    monkeypatch.setattr(this_machine, "_DEVICES", tmp_path)
    monkeypatch.setattr(this_machine, "_DRIVER", driver)
    monkeypatch.setattr(this_machine, "find_spec", lambda _: True)
    file = substitute(this_machine.file_of_this_machine({}, {}), {})
    assert file["hosts"] == [{"name": "here", "devices": 2, "gpu": "H100", "memory_gib": 80.0}]
    one = substitute(this_machine.file_of_this_machine({}, {"CUDA_VISIBLE_DEVICES": "1"}), {})
    assert one["hosts"] == [{"name": "here", "devices": 1, "gpu": "H100", "memory_gib": 80.0}]
    on_cores = this_machine.file_of_this_machine({}, {"JAX_PLATFORMS": "cpu"})
    assert "gpu" not in str(on_cores["hosts"])
