"""Names in files: one rule for all of them, wherever they are read."""

import io
import os
import re
import string
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe import topo
from jaxpipe.cli.main import main
from jaxpipe.errors import ConfigError
from jaxpipe.foreign_file import check_inside, lines_of, read_regular
from jaxpipe.models import presets
from jaxpipe.run.hosts.run_over_hosts import listen_address
from jaxpipe.topo import Cluster, Device, Host
from jaxpipe.topo.catalogue import load
from jaxpipe.topo.csv_table import csv_rows
from jaxpipe.topo.hostfile import parse_hostfile
from jaxpipe.topo.names import (
    check_cluster,
    check_device,
    check_host,
    check_name,
    is_host_name,
    is_name,
)
from jaxpipe.topo.slurm import expand, parse_topology
from jaxpipe.topo.tc import parse_addresses

HARMLESS = set(string.ascii_letters + string.digits + "._-")
NAMES = st.text(max_size=70) | st.from_regex(re.compile(r"[A-Za-z0-9._-]{1,70}"), fullmatch=True)


@given(name=NAMES)
def test_a_name_is_one_harmless_word(name: str):
    expected = name[:1].isalnum() and set(name) <= HARMLESS and len(name) <= 64
    # As in RFC 1123, there is something between dots, and after the last.
    expected = expected and not any(part[:1] in ("", "-") for part in name.split("."))
    assert is_name(name) == (expected and name.isascii())


@given(st.from_regex(r"[a0_.-]{1,6}", fullmatch=True) | st.text(max_size=5))
def test_hosts_are_named_as_in_rfc_1123(name: str):
    """Apart from underscores, which names of machines have."""
    words = name.split(".")
    word = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?", re.ASCII)
    expected = all(word.fullmatch(part.replace("_", "x")) for part in words) and name[0] != "_"
    if words[-1].isdecimal():
        expected = expected and len(words) == 4 and all(w.isdecimal() for w in words)
        expected = expected and not any(w != "0" and w.startswith("0") for w in words)
    assert is_host_name(name) == (expected and name.isascii())
    with (
        nullcontext() if expected and name.isascii() else pytest.raises(ValueError, match="must be")
    ):
        check_host(name, "hosts")


def test_what_comes_with_jaxpipe_is_named_so():
    for name in topo.names():
        cluster = topo.load(name)
        assert check_cluster(cluster.name, "name") == name
        for word in (*cluster.regions, *(host.name for host in cluster.hosts)):
            assert check_name(word, "name") == word
        for device in cluster.devices:
            assert check_device(device.name, "devices") == device.name
    assert all(map(is_name, presets()))


def test_clusters_with_settings_are_names():
    cluster = topo.load("homogeneous:hosts=2,delay_ms=60")
    assert cluster.name == "homogeneous:hosts=2,delay_ms=60"


BAD = (
    "a.",
    "a..b",
    "a.-b",
    "ev\ntouch F",
    "a b",
    "../../x",
    "",
    "-n",
    ".x",
    "a;b",
    "a$(x)",
    "\x1b[2J",
    "x" * 65,
    "ä",
)

LINKS = """
[inside_region]
latency_ms = 1
bandwidth_gbps = 1
"""


def cluster_file(folder: Path, head: str, rest: str = "") -> str:
    path = folder / "cluster.toml"
    path.write_text(f"{head}\n{rest}\n{LINKS}", encoding="utf-8")
    return str(path)


def quoted(name: str) -> str:
    return '"' + "".join(f"\\u{ord(each):04x}" for each in name) + '"'


@pytest.mark.parametrize("bad", BAD, ids=ascii)
@pytest.mark.parametrize(
    ("lines", "field"),
    [
        ('name = {bad}\n[[hosts]]\nname = "a"', "name"),
        ('name = "c"\n[[hosts]]\nname = {bad}', "hosts.name"),
        ('name = "c"\n[[hosts]]\nregion = {bad}', "hosts.region"),
        ('name = "c"\n[[hosts]]\nregion = ["a", {bad}]', "hosts.region"),
        (
            'name = "c"\n[[hosts]]\nregion = "a"\n[[links]]\nbetween = ["a", {bad}]\n'
            "latency_ms = 1\nbandwidth_gbps = 1",
            "links.between",
        ),
        (
            'name = "c"\n[[hosts]]\nregion = "a"\n[[links]]\nsource = "a"\ndestination = {bad}\n'
            "latency_ms = 1\nbandwidth_gbps = 1",
            "links.destination",
        ),
    ],
)
def test_a_cluster_file_has_no_other_names(tmp_path: Path, bad: str, lines: str, field: str):
    path = cluster_file(tmp_path, lines.replace("{bad}", quoted(bad)))
    with pytest.raises(ValueError, match=rf"`{field}` must be letters, digits") as raised:
        topo.load(path)
    assert str(raised.value).replace(str(path), "").isprintable()


@pytest.mark.parametrize(
    "settings",
    ["hosts=2\n", "hosts= 2", "gpu=a b", "gpu=\x1b[2J", "regions=a;b", "x=" + "y" * 2000],
)
def test_settings_become_part_of_the_name(settings: str):
    with pytest.raises(ValueError, match=r"must be letters, digits and .* settings of a cluster"):
        topo.load(f"aws:{settings}")


@pytest.mark.parametrize(
    "make",
    [
        lambda bad: Host(name=bad, region="here"),
        lambda bad: Host(name="a", region=bad),
        lambda bad: one_device(name=bad),
        lambda bad: one_device(device=bad),
    ],
)
@pytest.mark.parametrize("bad", BAD, ids=ascii)
def test_no_cluster_has_other_names(make: Callable[[str], object], bad: str):
    with pytest.raises(ValueError, match="must be"):
        make(bad)


def one_device(*, name: str = "c", device: str = "a:0") -> Cluster:
    return Cluster(
        name=name,
        devices=(Device(name=device, host="a", region="here"),),
        latency_s=np.zeros((1, 1)),
        bandwidth_bytes_per_s=np.full((1, 1), np.inf),
    )


HOST_READERS: dict[str, Callable[[str], object]] = {
    "cluster": lambda name: Host(name=name, region="here"),
    "hostfile": parse_hostfile,
    "hostfile with slots": lambda name: parse_hostfile(f"{name} slots=1"),
    "hostfile of MPICH": lambda name: parse_hostfile(f"{name}:1"),
    "topology": lambda name: parse_topology(f"SwitchName=s Nodes={name}"),
    "addresses": lambda name: parse_addresses(f"{name} 10.0.0.1"),
    "listen": lambda name: listen_address(f"{name}:1"),
}
LONG = ("x" * 64, f"a.{'x' * 64}", f"{'x' * 40}.{'y' * 40}", f"{'a.' * 130}a", "a." * 2)


@pytest.mark.parametrize("reader", HOST_READERS)
def test_every_reader_of_hosts_has_the_rule_of_rfc_1123(reader: str):
    read = HOST_READERS[reader]
    for right in ("x" * 63, f"{'x' * 31}.{'y' * 32}", "10.0.0.1"):
        read(right)
    for wrong in LONG:
        with pytest.raises((ValueError, ConfigError)):
            read(wrong)


@pytest.mark.parametrize("name", ["", "a b", *LONG])
def test_a_host_joins_by_a_name(name: str, capsys: pytest.CaptureFixture[str]):
    assert main(["join", "nowhere", "--host", name]) == 2
    assert "jaxpipe: `--host` must be the name of this host" in capsys.readouterr().err


OTHER_ENDS = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
"""What ends a line for `str.splitlines`, and for no other program."""


@pytest.mark.parametrize("end", OTHER_ENDS, ids=ascii)
def test_lines_end_where_other_programs_end_them(end: str):
    hidden = f"# note{end}"
    assert parse_hostfile(f"{hidden}b slots=2\na slots=1") == parse_hostfile("a slots=1")
    assert parse_topology(f"{hidden}SwitchName=t Nodes=b\nSwitchName=s Nodes=a") == {"a": "s"}
    assert list(parse_addresses(f"{hidden}b 10.0.0.2\na 10.0.0.1")) == ["a"]
    assert csv_rows(f"{hidden}c,d\na,b\r\n1,2\r\n") == [{"a": "1", "b": "2"}]
    assert lines_of(f"a{end}b\r\nc\n\nd") == [f"a{end}b", "c", "", "d"]


SECRET = "root:$6$salty:19000:0:99999:7:::"


@pytest.mark.parametrize(
    ("group", "words"),
    [
        ('hostfile = "other"', "line 1 of a hostfile must be"),
        ('slurm_topology = "other"', "line 1 of the topology must be"),
        ('nvidia_topology = "other"', "must be the output of `nvidia-smi topo -m`"),
    ],
)
@pytest.mark.parametrize("content", [SECRET, f"host,{SECRET}", f"{SECRET}\n{SECRET}"])
def test_errors_keep_the_content_of_other_files(
    tmp_path: Path, group: str, words: str, content: str
):
    (tmp_path / "other").write_text(content)
    with pytest.raises(ValueError, match=words) as raised:
        load(cluster_file(tmp_path, f'name = "c"\n[[hosts]]\n{group}'))
    assert "salty" not in str(raised.value)


@pytest.mark.parametrize("content", [SECRET, f"a,{SECRET}\nb", f"{SECRET}\n{SECRET}"])
@pytest.mark.parametrize("suffix", ["csv", "npy"])
def test_errors_keep_the_content_of_matrices(tmp_path: Path, suffix: str, content: str):
    (tmp_path / f"m.{suffix}").write_text(content)
    pairs = f'[pairs]\nlatency_s = "m.{suffix}"\nbandwidth_bytes_per_s = "m.{suffix}"'
    path = tmp_path / "cluster.toml"
    path.write_text(f'name = "c"\n[[hosts]]\n{pairs}')
    with pytest.raises(ValueError, match="cannot parse as") as raised:
        load(str(path))
    assert "salty" not in str(raised.value)


def test_errors_keep_the_content_of_a_link_table(tmp_path: Path):
    (tmp_path / "t.csv").write_text(
        f"region_a,region_b,latency_ms,bandwidth_gbps\na,b,{SECRET},1\n"
    )
    with pytest.raises(ValueError, match="row 1 has something else") as raised:
        load(cluster_file(tmp_path, 'name = "c"\nlink_table = "t.csv"\n[[hosts]]'))
    assert "salty" not in str(raised.value)


def test_the_header_of_a_matrix_claims_no_memory(tmp_path: Path):
    header = io.BytesIO()
    huge = {"shape": (2**21, 2**21), "fortran_order": False, "descr": "<f8"}
    np.lib.format.write_array_header_1_0(header, huge)
    (tmp_path / "m.npy").write_bytes(header.getvalue())
    pairs = '[pairs]\nlatency_s = "m.npy"\nbandwidth_bytes_per_s = "m.npy"'
    path = tmp_path / "cluster.toml"
    path.write_text(f'name = "c"\n[[hosts]]\n{pairs}')
    with pytest.raises(ValueError, match="35,184,372,088,832 bytes, and the file has 0"):
        load(str(path))


@pytest.mark.parametrize("content", ["n1 slots=999999999\n", "n1 slots=99999999999999\n"])
def test_slots_are_counted_before_devices_are_made(tmp_path: Path, content: str):
    (tmp_path / "hosts").write_text(content)
    with pytest.raises(ValueError, match=r"at most 16,384|N at least 1"):
        load(cluster_file(tmp_path, 'name = "c"\n[[hosts]]\nhostfile = "hosts"'))


@pytest.mark.parametrize("text", ["a[1-999999999]", "a[1-99]b[1-99]c[1-99]", "a[1-9]" * 20])
def test_ranges_are_counted_before_they_are_expanded(text: str):
    with pytest.raises(ValueError, match="at most 8,192 names"):
        expand(text)


def test_only_regular_files_are_read(tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link", most_bytes=5) == b"12345"
    with pytest.raises(OSError, match="not a regular file"):
        read_regular(tmp_path / "pipe", most_bytes=5)
    with pytest.raises(OSError, match="more than 4 bytes"):
        read_regular(tmp_path / "file", most_bytes=4)
    with pytest.raises(IsADirectoryError):
        read_regular(tmp_path, most_bytes=4)


@pytest.mark.parametrize("file", ["../x", "/etc/passwd", "a/b", "..", ".", "", "a\0b"])
def test_files_stay_in_their_folder(file: str):
    with pytest.raises(OSError, match="not the name of a file"):
        check_inside(file, Path("folder"))
