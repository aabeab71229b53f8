"""Clusters as network namespaces of one machine: real processes and messages, emulated links."""

from topo.emulate.commands import EmulationError
from topo.emulate.emulation import Emulation, HostCount, Traffic, emulated
from topo.emulate.engine import Choice, EngineKind, LinkCount

__all__ = [
    "Choice",
    "Emulation",
    "EmulationError",
    "EngineKind",
    "HostCount",
    "LinkCount",
    "Traffic",
    "emulated",
]
