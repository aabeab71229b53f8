"""Emulated clusters: network namespaces of one machine, with real processes and messages."""

from jaxpipe.topo.emulate.commands import EmulationError
from jaxpipe.topo.emulate.emulation import Emulation, HostCount, NetworkTraffic, emulated
from jaxpipe.topo.emulate.engine import ChosenEngine, EngineKind, LinkCount
from jaxpipe.topo.emulate.network_spec import Tcp

__all__ = [
    "ChosenEngine",
    "Emulation",
    "EmulationError",
    "EngineKind",
    "HostCount",
    "LinkCount",
    "NetworkTraffic",
    "Tcp",
    "emulated",
]
