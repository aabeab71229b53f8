"""The engines that join namespaces to a network: what they have in common, and which can run here.

=========  =============================  =========  ===============================================
engine     how                            latency    needs
=========  =============================  =========  ===============================================
netem      tc htb + netem, in the kernel  yes        a kernel with sch_netem and sch_htb
relay      TUN devices, this package      yes        /dev/net/tun
htb        tc htb + u32, in the kernel    **no**     a kernel with sch_htb
unshaped   a bridge                       no         nothing: a baseline, never chosen by itself
=========  =============================  =========  ===============================================
"""

import os
import shutil
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from topo.emulate.commands import EmulationError, run


class EngineKind(Enum):
    """Which engine; `auto` is the first that this machine can run, in the order of the table."""

    AUTO = "auto"
    NETEM = "netem"
    RELAY = "relay"
    HTB = "htb"
    UNSHAPED = "unshaped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCount:
    """What has passed a link, from one host to another."""

    source: int
    destination: int
    num_bytes: int
    dropped_packets: int


class Engine(Protocol):
    """Joins namespaces, and counts what it moves between them."""

    def passed(self) -> tuple[LinkCount, ...]:
        """Return what has passed each link so far; nothing if it does not tell links apart."""
        ...

    def close(self) -> None:
        """End what the engine has started; its namespaces are removed by others."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An engine, and why it was chosen: what was tried before it, and what that said."""

    kind: EngineKind
    why: str


def check_machine() -> None:
    """Check that namespaces can be made here.

    Raises:
        ValueError: this is not root, or a program is missing.
    """
    if os.geteuid():
        raise ValueError(
            f"namespaces are made by root, and this is user {os.geteuid()}: use sudo, or emulate "
            f"inside the transport, without root, by `--set run.transport=shaped`"
        )
    packages = {
        "ip": "iproute2",
        "tc": "iproute2",
        "unshare": "util-linux",
        "taskset": "util-linux",
    }
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise ValueError(f"namespaces take the program `{program}`: apt-get install {package}")


def choose(asked: EngineKind) -> Choice:
    """Return the engine that was asked for, or the best of this machine, each tried first.

    Raises:
        ValueError: it cannot run here.
    """
    if asked is not EngineKind.AUTO:
        missing = _missing(asked)
        if missing:
            raise ValueError(f"`--engine {asked.value}` cannot run on this machine: {missing}")
        return Choice(kind=asked, why="as asked for")
    tried: list[str] = []
    for kind in (EngineKind.NETEM, EngineKind.RELAY, EngineKind.HTB):
        missing = _missing(kind)
        if not missing:
            return Choice(kind=kind, why="; ".join(tried) or "the kernel shapes and delays")
        tried.append(f"no {kind.value}: {missing}")
    raise ValueError(f"no engine can run on this machine: {'; '.join(tried)}")


def _missing(kind: EngineKind) -> str:
    """Return what an engine misses here, as the machine says it; nothing if it can run."""
    match kind:
        case EngineKind.NETEM:
            return _refused("netem delay 1ms") or _refused("htb")
        case EngineKind.HTB:
            return _refused("htb")
        case EngineKind.RELAY:
            return _no_tun()
        case _:
            return ""


def _refused(qdisc: str) -> str:
    """Try a queueing discipline in a network of its own, which ends with it."""
    words = f"tc qdisc add dev lo root handle 1: {qdisc}"
    try:
        run("unshare", "--net", "sh", "-c", words)
    except EmulationError as error:
        return f"tc says {str(error).rpartition(': ')[2]!r} of {qdisc.partition(' ')[0]}"
    return ""


def _no_tun() -> str:
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"/dev/net/tun cannot be opened: {error.strerror}"
    return ""
