"""Emulated clusters: network namespaces of one machine, with real processes and messages."""

from topo.emulate.commands import EmulationError
from topo.emulate.emulation import Emulation, HostCount, Traffic, emulated
from topo.emulate.engine import Choice, EngineKind, LinkCount
from topo.emulate.network_spec import Tcp

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
