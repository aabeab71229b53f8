"""Relay process: reads packets from each namespace's TUN, delays them, and writes to the peer's.

`python -m jaxpipe.topo.emulate.relay PREFIX`, as root. It reads the description of the network from
its first line of input (`jaxpipe.topo.emulate.network_spec`), creates a TUN device `link0` in the
namespaces PREFIX0 of host 0, PREFIX1 of host 1 and so on, prints `ready`, and moves packets until
its input ends, so it never outlives its parent. Each further line requests the traffic, which it
prints as one line of JSON, `[[source, destination, bytes, dropped packets], ...]`.

Packets carry the kernel's offload header, so that checksums of packets that never leave the machine
are not computed. Sources: Linux, Documentation/networking/tuntap.rst; netns(8), setns(2).
"""

import fcntl
import gc
import json
import os
import select
import struct
import sys
import time
from contextlib import suppress
from ctypes import CDLL, get_errno
from heapq import heappop, heappush
from pathlib import Path

from jaxpipe.topo.emulate.addresses import DEVICE, host_of_packet
from jaxpipe.topo.emulate.network_spec import NetworkSpec, from_json
from jaxpipe.topo.emulate.packet_model import PacketNetwork, Pair, network_of

# Numbers of <linux/if_tun.h> and <linux/sched.h>, which Python has no names for.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x0001, 0x1000, 0x4000
_TUN_F_CSUM, _TUN_F_TSO4 = 0x01, 0x02
_CLONE_NEWNET = 0x40000000
_OFFLOAD_BYTES = 10  # struct virtio_net_hdr, in front of every packet
_MOST_BYTES = 65535 + _OFFLOAD_BYTES
_BATCH = 32
# `select` wakes up about this much late: it wakes earlier, and packets leave at most 50 us early.
_SPIN_S = 50e-6
_PRIORITY = 10


class Relay:
    """The TUN devices of all hosts, and the packets between them."""

    def __init__(self, network: PacketNetwork, devices: list[int]) -> None:
        self.network = network
        self._devices = devices
        self._host = {device: index for index, device in enumerate(devices)}
        self._due: list[tuple[float, int, bool, Pair, bytes]] = []
        self._count = 0

    def wait(self, control: int) -> bool:
        """Wait for packets or for the next due one; return whether `control` is readable."""
        now_s = time.monotonic()
        timeout_s = max(0.0, self._due[0][0] - now_s - _SPIN_S) if self._due else None
        # Devices are always ready to be written to: only reading is waited for.
        ready, _, _ = select.select([control, *self._devices], [], [], timeout_s)
        is_requested = False
        for device in ready:
            if device == control:
                is_requested = True
            else:
                self._read(device)
        self._deliver(time.monotonic() + _SPIN_S)
        return is_requested

    def _read(self, device: int) -> None:
        source = self._host[device]
        # Bounded: one busy host must not keep the packets of others waiting.
        for _ in range(_BATCH):
            try:
                packet = os.read(device, _MOST_BYTES)
            except BlockingIOError:
                return
            destination = host_of_packet(packet, _OFFLOAD_BYTES)
            pair = (source, destination)
            # IPv6, multicast, or an address of no host.
            if pair not in self.network.wires:
                continue
            num_bytes = len(packet) - _OFFLOAD_BYTES
            # Now, for each: packets of a batch have not arrived together.
            due_s = self.network.enter(pair, num_bytes=num_bytes, now_s=time.monotonic())
            self._push(due_s, pair, packet, is_in=False)

    def _push(self, due_s: float | None, pair: Pair, packet: bytes, *, is_in: bool) -> None:
        if due_s is not None:
            self._count += 1  # equal times stay in order
            heappush(self._due, (due_s, self._count, is_in, pair, packet))

    def _deliver(self, until_s: float) -> None:
        while self._due and self._due[0][0] <= until_s:
            due_s, _, is_in, pair, packet = heappop(self._due)
            if not is_in:
                num_bytes = len(packet) - _OFFLOAD_BYTES
                # `due_s`, not now: a late delivery must not occupy the NIC later.
                in_s = self.network.arrive(pair, num_bytes=num_bytes, now_s=due_s)
                if in_s is None or in_s > until_s:
                    self._push(in_s, pair, packet, is_in=True)
                    continue
            with suppress(OSError):  # a packet that the device refuses is lost, as on a wire
                os.write(self._devices[pair[1]], packet)

    def passed(self) -> list[list[int]]:
        """Return the hosts, bytes and dropped packets of each link."""
        return [
            [*pair, wire.sent_bytes, wire.dropped_packets]
            for pair, wire in self.network.wires.items()
        ]


def open_tun(namespace: str) -> int:
    """Return a TUN device of a namespace; closing it removes it.

    Raises:
        OSError: the process lacks privileges, or there is no TUN or no such namespace.
    """
    libc = CDLL(None, use_errno=True)
    # Opened before entering: then, /proc/self names the other namespace.
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    there = os.open(Path("/run/netns", namespace), os.O_RDONLY)
    try:
        _enter(libc, there)
        device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR
        fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), flags))
        fcntl.ioctl(device, _TUNSETOFFLOAD, _TUN_F_CSUM | _TUN_F_TSO4)
    finally:
        # Even after an error: the process must not stay in a host's namespace.
        _enter(libc, home)
        os.close(there)
        os.close(home)
    return device


def _enter(libc: CDLL, namespace: int) -> None:
    if libc.setns(namespace, _CLONE_NEWNET):
        raise OSError(get_errno(), "cannot enter the namespace")


def _raise_priority() -> None:
    """Raise the priority above ranks, whose time slices would delay packets."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    except OSError:
        with suppress(OSError):
            os.nice(-20)


def _print(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    """Run until the input ends."""
    prefix = sys.argv[1]
    # The parent sends nothing more before `ready`: Python's buffer is empty, and `os.read` below
    # misses nothing.
    spec: NetworkSpec = from_json(sys.stdin.readline())
    devices = [open_tun(f"{prefix}{number}") for number in range(len(spec.hosts))]
    relay = Relay(network_of(spec), devices)
    _raise_priority()
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    _print("ready")
    control = sys.stdin.fileno()
    while True:
        if relay.wait(control):
            if not os.read(control, 1024):
                return
            _print(json.dumps(relay.passed()))


if __name__ == "__main__":
    main()
