"""The engine that moves packets itself: starts the relay, and configures the devices it makes."""

import json
import subprocess
import sys
from contextlib import suppress
from math import ceil
from pathlib import Path
from threading import Timer

from jaxpipe.topo.emulate import addresses
from jaxpipe.topo.emulate.commands import TIMEOUT_S, EmulationError, ip_batch
from jaxpipe.topo.emulate.engine import LinkCount
from jaxpipe.topo.emulate.network_spec import LinkSpec, NetworkSpec, Tcp, to_json
from jaxpipe.topo.emulate.owner import Owner

_SECONDS_TO_END = 5.0
_FEWEST_PACKETS = 10
_ROOT = Path(__file__).parents[2]


class RelayEngine:
    """A running relay: `jaxpipe.topo.emulate.relay` moves packets, `packet_model` delays them."""

    def __init__(self, owner: Owner, spec: NetworkSpec) -> None:
        """Start it.

        Raises:
            EmulationError: it did not start.
        """
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "jaxpipe.topo.emulate.relay", owner.namespace("")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
            start_new_session=True,  # Ctrl-C is for the command; the relay ends with its input
        )
        self._is_late = False
        # The answer is awaited: devices exist only after `ready`.
        if self._ask(to_json(spec)) != "ready":
            said = self._last_words()
            self.close()
            raise EmulationError(f"the relay did not start: {said}")
        try:
            for number in range(len(spec.hosts)):
                _configure(owner.namespace(number), number, spec)
        except BaseException:
            self.close()
            raise

    def passed(self) -> tuple[LinkCount, ...]:
        """Return what has passed each link.

        Raises:
            EmulationError: the relay has ended.
        """
        answer = self._ask("")
        if not answer:
            raise EmulationError(f"the relay has ended: {self._last_words()}")
        return tuple(
            LinkCount(source=a, destination=b, num_bytes=num_bytes, dropped_packets=dropped)
            for a, b, num_bytes, dropped in json.loads(answer)
        )

    def close(self) -> None:
        """End the relay."""
        process = self._process
        # It ends when its input closes.
        for pipe in (process.stdin, process.stdout, process.stderr):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        try:
            process.wait(_SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_SECONDS_TO_END)

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        # Neither the write nor the read has a timeout; killing the relay ends both.
        deadline = Timer(TIMEOUT_S, self._give_up)
        deadline.start()
        # A relay that has ended breaks the pipe: its answer is empty then, which callers check.
        with suppress(OSError):
            self._process.stdin.write(f"{line}\n")
            self._process.stdin.flush()
        answer = self._process.stdout.readline().strip()
        deadline.cancel()
        return answer

    def _give_up(self) -> None:
        # In this order: when the pipe ends, the reason is known.
        self._is_late = True
        self._process.kill()

    def _last_words(self) -> str:
        assert self._process.stderr
        if self._is_late:
            return f"it did not answer within {TIMEOUT_S:g} s"
        # Killed first: reading to the end would wait for a relay that lives.
        self._process.kill()
        lines = self._process.stderr.read().strip().splitlines()
        return lines[-1] if lines else "it said nothing"


def _configure(namespace: str, number: int, spec: NetworkSpec) -> None:
    """Give a host its address and its ways to all others."""
    device = addresses.DEVICE
    ip_batch(
        (
            # /32: without a route of its own, a host is unreachable.
            f"addr add {addresses.data_address(number)}/32 dev {device}",
            f"link set {device} mtu {spec.tcp.mtu} txqueuelen 1000 up",
            *(_route(link, spec.tcp) for link in spec.links if link.source == number),
        ),
        namespace=namespace,
    )


def _route(link: LinkSpec, tcp: Tcp) -> str:
    """Return a route on which TCP begins with as much in flight as the link holds, or as usual."""
    route = (
        f"route add {addresses.data_address(link.destination)}/32 dev {addresses.DEVICE} "
        f"src {addresses.data_address(link.source)}"
    )
    if tcp is Tcp.KERNEL:
        return route
    # Both ways: the window covers the round trip.
    buffer_bytes = 2 * link.latency_s * link.bytes_per_s / tcp.mtu
    window = max(_FEWEST_PACKETS, ceil(buffer_bytes))
    return f"{route} initcwnd {window} initrwnd {window}"
