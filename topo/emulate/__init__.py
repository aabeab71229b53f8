"""Emulated clusters: network namespaces of one machine, with real processes and messages."""

from jaxpipe.topo.emulate.commands import EmulationError
from jaxpipe.topo.emulate.emulation import Emulation, HostCount, Traffic, emulated
from jaxpipe.topo.emulate.engine import Choice, EngineKind, LinkCount
from jaxpipe.topo.emulate.network_spec import Tcp

__all__ = [
    "Choice",
    "Emulation",
    "EmulationError",
    "EngineKind",
    "HostCount",
    "LinkCount",
    "Tcp",
    "Traffic",
    "emulated",
]
