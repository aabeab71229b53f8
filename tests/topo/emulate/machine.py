"""Whether this machine can make namespaces, and what is left of them."""

import os
from pathlib import Path

import pytest

from jaxpipe.topo.emulate.engine import EngineKind, check_machine, choose


def needs_namespaces(kind: EngineKind = EngineKind.RELAY) -> None:
    """Skip, and say why, unless this machine can run the engine."""
    try:
        check_machine()
        choose(kind)
    except ValueError as error:
        pytest.skip(str(error))


def leftovers(pid: int) -> list[str]:
    """Return what there is of the emulation of a process: namespaces, devices and files."""
    folders = (Path("/run/netns"), Path("/run"), Path("/etc/netns"))
    found = [str(path) for folder in folders for path in folder.glob(f"jaxpipe-{pid}-*")]
    bridges = [name for name in os.listdir("/sys/class/net") if name.startswith(f"jp{pid}")]
    return sorted(found + bridges)
