"""`jaxpipe topo`, called as from a terminal."""

import os
import shlex
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jaxpipe import topo
from jaxpipe.cli.main import main
from jaxpipe.plan import default_plan, write_plan
from tests.helpers import mpi_command, mpi_environment
from tests.plan_section import decided


def test_list_names_the_catalogue(capsys: pytest.CaptureFixture[str]):
    assert main(["topo", "list"]) == 0
    printed = capsys.readouterr().out
    assert all(name in printed for name in topo.names())
    lines = {line.split()[0]: " ".join(line.split()) for line in printed.splitlines() if line}
    assert lines["fluidstack-3region"].startswith("fluidstack-3region 48 devices, ")
    assert lines["fluidstack-3region"].endswith(" east, middle, west")
    assert lines["two-region"] == "two-region 4 devices, of unknown speed ohio, virginia"


def test_show_draws(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    picture = tmp_path / "cluster.png"
    assert main(["topo", "show", "two-region", "--picture", str(picture)]) == 0
    assert "└─ virginia: 2 devices, up to 1 ms, down to 5 Gbps" in capsys.readouterr().out
    assert picture.exists()


def test_show_draws_a_map(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    pytest.importorskip("matplotlib")
    sites = tmp_path / "sites.svg"
    assert main(["topo", "show", "two-region", "--map", str(sites)]) == 0
    assert capsys.readouterr().out.endswith(f"\nmap -> {sites}\n")
    assert "1.12 Gbit/s" in sites.read_text()
    assert main(["topo", "show", "two-region", "--map", str(tmp_path / "sites.jpg")]) == 2
    assert "choose from .png, .svg, .pdf" in capsys.readouterr().err


def test_tc_writes_two_scripts_for_each_host(tmp_path: Path):
    hosts = topo.load("two-region").hosts
    addresses = tmp_path / "addresses"
    addresses.write_text("".join(f"{h.name} 10.0.0.{i}\n" for i, h in enumerate(hosts, start=1)))
    command = ["topo", "tc", "two-region", "--device", "eth0", "--addresses", str(addresses)]
    assert main([*command, "--out", str(tmp_path / "tc")]) == 0
    scripts = sorted((tmp_path / "tc").iterdir())
    assert [path.name for path in scripts] == sorted(
        f"{host.name}.{kind}.sh" for host in hosts for kind in ("setup", "undo")
    )
    assert all(os.access(path, os.X_OK) for path in scripts)


def test_tc_prints_the_command_that_limits_a_nic(capsys: pytest.CaptureFixture[str]):
    # Figure 8 of HiDup: two hosts of four GPUs, 20 Gbit/s.
    name = "homogeneous:hosts=2,devices=4,delay_ms=0,bandwidth_gbps=20"
    assert main(["topo", "tc", name, "--device", "ens14", "--tbf"]) == 0
    assert capsys.readouterr().out == (
        "# as root on here-0, here-1\n"
        "tc qdisc replace dev ens14 root tbf rate 20000000000bit burst 2500000 latency 200ms\n"
        "# to undo\n"
        "tc qdisc del dev ens14 root\n"
    )


def test_tc_takes_a_bucket_in_the_words_of_tc(capsys: pytest.CaptureFixture[str]):
    # As HiDup's authors wrote it: tbf rate 30gibit latency 60ms burst 60m.
    words = ["--rate", "30gibit", "--burst", "60m", "--latency", "60ms"]
    assert main(["topo", "tc", "two-region", "--device", "ens14", "--tbf", *words]) == 0
    assert (
        "tc qdisc replace dev ens14 root tbf rate 32212254720bit burst 62914560 latency 60ms\n"
        in capsys.readouterr().out
    )


def test_hosts_writes_a_placement(tmp_path: Path):
    command = ["topo", "hosts", "two-region", "--devices", "2,0", "--out", str(tmp_path)]
    assert main(command) == 0
    ranks = (tmp_path / "openmpi.ranks").read_text()
    assert ranks == "rank 0=virginia-0 slot=0\nrank 1=ohio-0 slot=0\n"
    assert (tmp_path / "mpich.hosts").read_text() == "virginia-0:1\nohio-0:1\n"


def test_hosts_writes_the_placement_of_a_plan(tmp_path: Path):
    cluster = topo.load("two-region")
    config = decided(stages=2, replicas=1)
    plan = default_plan(config, cluster, num_layers=2, batch=1, tied=False)
    swapped = plan.on_devices(((3, 1),))
    write_plan(swapped, cluster, tmp_path / "plan.toml")
    command = ["topo", "hosts", "two-region", "--plan", str(tmp_path / "plan.toml")]
    assert main([*command, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "mpich.hosts").read_text() == "virginia-1:1\nohio-1:1\n"
    assert main([*command, "--devices", "0,1"]) == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["show", "homogenous"], "no cluster 'homogenous': did you mean 'homogeneous'?"),
        (["tc", "laptop", "--device", "eth0", "--addresses", "no"], "No such file"),
        (
            ["tc", "laptop", "--device", "eth0"],
            "`--addresses` is missing: hosts are identified",
        ),
        (["tc", "laptop", "--device", "eth0", "--tbf"], "has one host, whose NIC nothing crosses"),
        (
            ["tc", "two-region", "--device", "a;b", "--tbf"],
            "`--device` must be a network interface",
        ),
        (
            ["tc", "two-region", "--device", "eth0", "--tbf", "--addresses", "hosts.txt"],
            "`--tbf` limits whole interfaces: leave `--addresses` out",
        ),
        (
            ["tc", "two-region", "--device", "eth0", "--tbf", "--rate", "30gib"],
            "`--rate` must be a number and one of bit, bps, kbit",
        ),
        (
            ["tc", "two-region", "--device", "eth0", "--tbf", "--burst", "4g"],
            "`--burst` must be from 1514 bytes, a packet, without which nothing passes, to below",
        ),
        (
            ["tc", "two-region", "--device", "eth0", "--tbf", "--latency", "0ms"],
            "`--latency` must be from 1 us to an hour, is 0 s",
        ),
        (
            ["tc", "two-region", "--device", "eth0", "--addresses", "no", "--burst", "1m"],
            "`--burst` is for `--tbf`: leave it out, or `--addresses`",
        ),
        (["hosts", "laptop", "--devices", "1,x"], "`--devices` must be numbers such as 0,2,1"),
        (["hosts", "laptop", "--devices", "\u0663"], "`--devices` must be numbers such as 0,2,1"),
    ],
)
def test_mistakes_take_one_line(
    capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
):
    assert main(["topo", *arguments]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [1, 3])
def test_probe_measures_the_ranks_of_a_job(tmp_path: Path, num_ranks: int):
    out = tmp_path / "measured.toml"
    arguments = ("-m", "jaxpipe", "topo", "probe", "-o", str(out), "--large-mib", "1")
    subprocess.run(
        mpi_command(num_ranks, *arguments), check=True, env=mpi_environment(), timeout=120
    )
    cluster = topo.load(str(out))
    others = ~np.eye(num_ranks, dtype=bool)
    assert (cluster.name, len(cluster), len(cluster.hosts)) == ("measured", num_ranks, 1)
    assert (cluster.latency_s[others] > 0).all()
    assert np.isfinite(cluster.bandwidth_bytes_per_s[others]).all()
    assert cluster.regions == ("island-0",)


def test_nothing_is_written_through_a_link(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    addresses, out, outside = tmp_path / "addresses", tmp_path / "out", tmp_path / "outside"
    addresses.write_text("here-0 10.0.0.1\n")
    outside.write_text("precious")
    out.mkdir()
    (out / "here-0.undo.sh").symlink_to(outside)
    (out / "mpich.hosts").symlink_to(outside)
    tc = ["topo", "tc", "laptop", "--device", "eth0", "--addresses", str(addresses)]
    for command in (tc, ["topo", "hosts", "laptop"]):
        assert main([*command, "--out", str(out)]) == 2
        assert "it is a link: remove it" in capsys.readouterr().err
    assert outside.read_text() == "precious"


def test_the_next_command_is_quoted(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    out = tmp_path / "a b; c"
    assert main(["topo", "hosts", "laptop", "--out", str(out)]) == 0
    openmpi, mpich = capsys.readouterr().out.splitlines()
    assert shlex.split(openmpi)[4] == str(out / "openmpi.hosts")
    assert shlex.split(mpich)[3] == str(out / "mpich.hosts")
