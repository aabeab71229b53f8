"""Engines that connect namespaces to a network: their interface, and the choice for this machine.

=========  =============================  =========  ===============================================
engine     how                            latency    needs
=========  =============================  =========  ===============================================
netem      tc htb + netem, in the kernel  yes        a kernel with sch_netem and sch_htb
relay      TUN devices, this package      yes        /dev/net/tun
htb        tc htb + u32, in the kernel    **no**     a kernel with sch_htb
unshaped   a bridge                       no         nothing: a baseline, never chosen by `auto`
=========  =============================  =========  ===============================================
"""

import os
import shutil
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from jaxpipe.topo.emulate.commands import EmulationError, run


class EngineKind(Enum):
    """The engine; `auto` is the first of the table that this machine can run."""

    AUTO = "auto"
    NETEM = "netem"
    RELAY = "relay"
    HTB = "htb"
    UNSHAPED = "unshaped"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCount:
    """The traffic of a link, from one host to another."""

    source: int
    destination: int
    num_bytes: int
    dropped_packets: int


class Engine(Protocol):
    """Connects namespaces, and counts the traffic between them."""

    def passed(self) -> tuple[LinkCount, ...]:
        """Return the traffic of each link so far; nothing if the engine does not count links."""
        ...

    def close(self) -> None:
        """End the processes of the engine; its namespaces are removed elsewhere."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenEngine:
    """An engine, and why it was chosen: the engines tried before it, and their errors."""

    kind: EngineKind
    why: str


def check_machine() -> None:
    """Check that namespaces can be created here.

    Raises:
        ValueError: the user is not root, or a program is missing.
    """
    if os.geteuid():
        raise ValueError(
            f"user {os.geteuid()} is not root, which namespaces need: use sudo, or emulate inside "
            "the transport, without root, with `--set run.transport=shaped`"
        )
    packages = {
        "ip": "iproute2",
        "tc": "iproute2",
        "unshare": "util-linux",
        "taskset": "util-linux",
    }
    for program, package in packages.items():
        if shutil.which(program) is None:
            raise ValueError(
                f"`{program}` is missing, which namespaces need: apt-get install {package}"
            )


def choose(asked: EngineKind) -> ChosenEngine:
    """Return the requested engine, or the best one of this machine; each is tried first.

    Raises:
        ValueError: the engine cannot run here.
    """
    if asked is not EngineKind.AUTO:
        missing = _missing(asked)
        if missing:
            raise ValueError(f"`--engine {asked.value}` cannot run on this machine: {missing}")
        return ChosenEngine(kind=asked, why="requested")
    tried: list[str] = []
    for kind in (EngineKind.NETEM, EngineKind.RELAY, EngineKind.HTB):
        missing = _missing(kind)
        if not missing:
            return ChosenEngine(kind=kind, why="; ".join(tried) or "the kernel shapes and delays")
        tried.append(f"no {kind.value}: {missing}")
    raise ValueError(f"cannot emulate: no engine can run on this machine: {'; '.join(tried)}")


def _missing(kind: EngineKind) -> str:
    """Return the error of an engine on this machine; empty if it can run."""
    match kind:
        case EngineKind.NETEM:
            # Both: netem delays inside the classes of htb.
            return _refused("netem", "delay", "1ms") or _refused("htb")
        case EngineKind.HTB:
            return _refused("htb")
        case EngineKind.RELAY:
            return _no_tun()
        case _:
            return ""


def _refused(*qdisc: str) -> str:
    """Try a queueing discipline in a temporary network namespace; return its error."""
    # In a namespace of its own, which ends with the command: the machine's `lo` stays as it is.
    try:
        run("unshare", "--net", "tc", "qdisc", "add", "dev", "lo", "root", "handle", "1:", *qdisc)
    except EmulationError as error:
        return f"tc says {str(error).rpartition(': ')[2]!r} of {qdisc[0]}"
    return ""


def _no_tun() -> str:
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        return f"/dev/net/tun cannot be opened: {error.strerror}"
    return ""
