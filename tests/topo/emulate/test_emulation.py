"""Namespaces for real: made, crossed by the bytes that are sent and no others, and removed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace

import pytest

from jaxpipe import topo
from jaxpipe.topo import with_slower_links
from jaxpipe.topo.emulate import Emulation, EmulationError, EngineKind, Tcp, emulated
from jaxpipe.topo.emulate.engine import check_machine, choose
from jaxpipe.topo.emulate.namespaces import processes_in
from tests.topo.emulate.machine import leftovers, needs_namespaces

_ECHO = """
import socket
with socket.create_server(("10.63.0.{host}", 5000)) as server:
    print("ready", flush=True)
    peer, _ = server.accept()
    while word := peer.recv(1 << 16):
        peer.sendall(word)
"""
_TALK = """
import socket, time
with socket.create_connection(("10.63.0.{host}", 5000)) as peer:
    for _ in range(3):
        began = time.perf_counter()
        peer.sendall(b"x")
        peer.recv(1)
        print(time.perf_counter() - began)
    peer.sendall(bytes({num_bytes}))
    left = {num_bytes}
    while left:
        left -= len(peer.recv(1 << 16))
"""


def python(emulation: Emulation, host: str, code: str) -> Sequence[str]:
    return (*emulation.enter(host), sys.executable, "-c", code)


def talk(emulation: Emulation, *, number: int, num_bytes: int) -> list[float]:
    """Send bytes from host 0 to another and back; return the seconds of round trips before."""
    names = [host.name for host in emulation.cluster.hosts]
    code = _ECHO.format(host=number + 1)
    command = python(emulation, names[number], code)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "ready\n"
        code = _TALK.format(host=number + 1, num_bytes=num_bytes)
        command = python(emulation, names[0], code)
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
        return [float(word) for word in done.stdout.split()]


@pytest.mark.root
@pytest.mark.parametrize("kind", [EngineKind.RELAY, EngineKind.HTB, EngineKind.UNSHAPED])
def test_what_is_sent_crosses_the_link_and_nothing_is_left_over(kind: EngineKind):
    needs_namespaces(kind)
    before = sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else []
    with emulated(with_slower_links(topo.load("two-region"), scale=2.0), kind=kind) as emulation:
        assert emulation.choice.kind is kind
        assert emulation.traffic().sent_bytes < 1000
        round_trips_s = talk(emulation, number=2, num_bytes=200_000)
        traffic = emulation.traffic()
    if kind is EngineKind.RELAY:
        # The relay releases a packet up to 50 us early rather than sleep for less than that.
        assert min(round_trips_s) >= 2 * (0.022 - 50e-6)
    sent = {host.host: host.sent_bytes for host in traffic.hosts}
    assert sent["ohio-0"] > 200_000
    assert sent["virginia-0"] > 200_000
    assert sent["ohio-1"] + sent["virginia-1"] < 1000
    crossed = {(c.source, c.destination): c.num_bytes for c in traffic.links if c.num_bytes > 1000}
    assert set(crossed) == (set() if kind is EngineKind.UNSHAPED else {(0, 2), (2, 0)})
    assert all(num_bytes > 200_000 for num_bytes in crossed.values())
    assert leftovers(os.getpid()) == []
    after = sorted(os.listdir("/run/netns")) if os.path.isdir("/run/netns") else []
    assert [name for name in after if name not in before and str(os.getpid()) in name] == []


_SINK = """
import socket
with socket.create_server(("10.63.0.{host}", 5000)) as server:
    print("ready", flush=True)
    peer, _ = server.accept()
    while peer.recv(1 << 16):
        pass
    peer.sendall(b"!")
"""
_POUR = """
import socket
with socket.create_connection(("10.63.0.{host}", 5000)) as peer:
    peer.sendall(bytes({num_bytes}))
    peer.shutdown(socket.SHUT_WR)
    peer.recv(1)
"""


@pytest.mark.root
@pytest.mark.parametrize("kind", [EngineKind.RELAY, EngineKind.HTB])
def test_hosts_of_a_region_carry_no_more_than_their_trunk(kind: EngineKind):
    needs_namespaces(kind)
    trunk = topo.Trunk(source="ohio", destination="virginia", bytes_per_s=5e6)
    cluster = replace(topo.load("two-region"), trunks=(trunk,))
    num_bytes = 2_000_000
    with emulated(cluster, kind=kind) as emulation, ExitStack() as ended:
        for number, name in ((3, "virginia-0"), (4, "virginia-1")):
            command = python(emulation, name, _SINK.format(host=number))
            sink = ended.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            assert sink.stdout is not None
            assert sink.stdout.readline() == "ready\n"
        began_s = time.monotonic()
        pours = [
            ended.enter_context(
                subprocess.Popen(
                    python(emulation, name, _POUR.format(host=number, num_bytes=num_bytes))
                )
            )
            for number, name in ((3, "ohio-0"), (4, "ohio-1"))
        ]
        assert [pour.wait(timeout=60) for pour in pours] == [0, 0]
        took_s = time.monotonic() - began_s
    # A link alone has 140 MB/s. Buckets and queues of a millisecond let a little through at once.
    assert took_s > 0.95 * 2 * num_bytes / trunk.bytes_per_s


@pytest.mark.root
def test_two_emulations_do_not_disturb_each_other():
    needs_namespaces()
    code = (
        "import sys; from jaxpipe import topo; from jaxpipe.topo.emulate import emulated\n"
        "with emulated(topo.load('laptop')): print('made', flush=True); sys.stdin.read()"
    )
    command = (sys.executable, "-c", code)
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "made\n"
        theirs = leftovers(other.pid)
        with emulated(topo.load("laptop")):
            assert leftovers(other.pid) == theirs
            ours = leftovers(os.getpid())
            with (
                pytest.raises(ValueError, match="already has an emulation"),
                emulated(topo.load("laptop")),
            ):
                raise AssertionError("this was refused")
            assert leftovers(os.getpid()) == ours
        assert leftovers(other.pid) == theirs
        other.communicate("")
    assert leftovers(other.pid) == []


@pytest.mark.root
def test_what_a_killed_emulation_leaves_is_removed_by_the_next():
    needs_namespaces()
    code = (
        "import subprocess, time; from jaxpipe import topo\n"
        "from jaxpipe.topo.emulate import emulated\n"
        "with emulated(topo.load('laptop')) as e:\n"
        "    p = subprocess.Popen([*e.enter('here-0'), 'sleep', '1000'], stdout=2)\n"
        "    print(e.owner.name, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen(
        (sys.executable, "-c", code), stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        namespace = f"{killed.stdout.readline().strip()}-0"
        while not (asleep := processes_in([namespace])):
            time.sleep(0.05)
        killed.send_signal(signal.SIGKILL)
    assert leftovers(killed.pid)
    with emulated(topo.load("laptop")):
        assert leftovers(killed.pid) == []
        for pid in asleep:
            assert not os.path.exists(f"/proc/{pid}/exe")
    assert leftovers(os.getpid()) == []


@pytest.mark.root
def test_an_error_inside_removes_everything():
    needs_namespaces()
    with pytest.raises(EmulationError, match="`false` failed with 1"):
        _run_false()
    assert leftovers(os.getpid()) == []


def _run_false() -> None:
    from jaxpipe.topo.emulate.commands import run

    with emulated(topo.load("laptop")):
        run("false")


def test_root_is_needed_and_programs_are_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(ValueError, match="user 1000 is not root, which namespaces need: use sudo"):
        check_machine()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(
        ValueError, match="`ip` is missing, which namespaces need: apt-get install iproute2"
    ):
        check_machine()


def test_an_engine_says_what_it_misses(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ValueError, match="`--engine netem` cannot run on this machine: tc says"):
        choose(EngineKind.NETEM)


@pytest.mark.root
@pytest.mark.parametrize("kind", [EngineKind.HTB, EngineKind.UNSHAPED])
def test_an_engine_without_jitter_refuses_it(kind: EngineKind):
    needs_namespaces(kind)
    with (
        pytest.raises(
            ValueError, match="does not support jitter and loss: leave out `--jitter-ms`"
        ),
        emulated(topo.load("laptop"), kind=kind, jitter_s=1e-3),
    ):
        raise AssertionError("this was refused")
    assert leftovers(os.getpid()) == []


@pytest.mark.root
@pytest.mark.parametrize(
    ("tcp", "restarts", "is_wide"), [(Tcp.STEADY, 0, True), (Tcp.KERNEL, 1, False)]
)
def test_links_restart_after_silences_if_they_should(tcp: Tcp, restarts: int, is_wide: bool):
    needs_namespaces(EngineKind.RELAY)
    look = "cat /proc/sys/net/ipv4/tcp_slow_start_after_idle; ip route"
    with emulated(topo.load("two-region"), kind=EngineKind.RELAY, tcp=tcp) as emulation:
        printed = subprocess.run(
            [*emulation.enter("ohio-0"), "sh", "-c", look],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    assert printed.startswith(f"{restarts}\n")
    assert ("initcwnd" in printed) == is_wide


@pytest.mark.root
def test_kernels_tcp_has_the_segments_of_ethernet_and_the_settings_given():
    needs_namespaces(EngineKind.RELAY)
    name = "net.ipv4.tcp_slow_start_after_idle"
    look = f"sysctl -n {name}; cat /sys/class/net/link0/mtu"
    network = emulated(
        topo.load("two-region"), kind=EngineKind.RELAY, tcp=Tcp.KERNEL, sysctls={name: "0"}
    )
    with network as emulation:
        enter = emulation.enter("virginia-1")
        printed = subprocess.check_output([*enter, "sh", "-c", look], text=True)
        # Segments that the kernel hands over in one piece arrive in one piece, too.
        talk(emulation, number=2, num_bytes=2_000_000)
        assert emulation.traffic().sent_bytes > 4_000_000
    assert printed.split() == ["0", "1500"]


@pytest.mark.root
def test_a_setting_that_the_kernel_does_not_have_is_an_error():
    needs_namespaces(EngineKind.RELAY)
    with (
        pytest.raises(EmulationError, match="tcp_no_such_thing"),
        emulated(topo.load("laptop"), sysctls={"net.ipv4.tcp_no_such_thing": "1"}),
    ):
        raise AssertionError("this was accepted")
    assert leftovers(os.getpid()) == []


@pytest.mark.root
@pytest.mark.parametrize("name", ["kernel.panic", "net.ipv4.tcp_/../../../x", "net.ipv4.tcp_x y"])
def test_only_settings_of_tcp_can_be_given(name: str):
    with (
        pytest.raises(ValueError, match="`--sysctl` must be a setting of TCP"),
        emulated(topo.load("laptop"), sysctls={name: "1"}),
    ):
        raise AssertionError("this was accepted")
