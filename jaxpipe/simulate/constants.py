"""Fitted constants: the efficiency of published runs on their hardware."""

import tomllib
from dataclasses import dataclass, field, replace
from importlib import resources

import msgspec

from jaxpipe.network import MessageCosts
from jaxpipe.topo import Cluster
from jaxpipe.topo.gpu import Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Speeds:
    """The fraction of a GPU's peak that a stage reaches, with local or with remote neighbours."""

    local_fraction: float
    remote_fraction: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConstants:
    """Costs of messages between hosts; `data/dtfm.toml` explains each constant."""

    message_overhead_s: float
    flow_bytes_per_s: float
    host_bytes_per_s: float
    nic_efficiency: float
    restart_bytes: float
    largest_window_bytes: float
    eager_bytes: float
    ring_round_s: float

    def messages(self) -> MessageCosts:
        """Return the costs of messages between stages."""
        return MessageCosts(
            overhead_s=self.message_overhead_s,
            flow_bytes_per_s=self.flow_bytes_per_s,
            host_bytes_per_s=self.host_bytes_per_s,
            restart_bytes=self.restart_bytes,
            largest_window_bytes=self.largest_window_bytes,
        )

    def exchanges(self) -> MessageCosts:
        """Return the costs of messages whose receives are posted when their rank gets there.

        Their connections are not idle long enough to restart.
        """
        return replace(self.messages(), eager_bytes=self.eager_bytes, restart_bytes=None)

    def gradients(self) -> MessageCosts:
        """Return the costs of the messages of an all-reduce of gradients, which stream."""
        return MessageCosts(
            restart_bytes=self.restart_bytes, largest_window_bytes=self.largest_window_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """The window of all TCP connections between two ranks: after an idle time, and at most."""

    restart_bytes: float
    largest_window_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """All fitted constants: two speeds in fp16, four of the network, and one speed in fp32.

    `connections` are those of clusters, by name, whose connections are not those of `network`.
    """

    fp16: Speeds
    fp32: Speeds
    network: NetworkConstants
    connections: dict[str, Connections] = field(default_factory=dict)

    def on(self, cluster: Cluster) -> "Constants":
        """Return the constants with the connections of a cluster."""
        own = self.connections.get(cluster.name)
        if own is None:
            return self
        network = replace(
            self.network,
            restart_bytes=own.restart_bytes,
            largest_window_bytes=own.largest_window_bytes,
        )
        return replace(self, network=network)

    def speeds(self, precision: Precision) -> Speeds:
        """Return the speeds with tensor cores, fitted in fp16, or without them, in fp32."""
        return self.fp32 if precision is Precision.FP32 else self.fp16


def dtfm_constants() -> Constants:
    """Return the constants of `data/dtfm.toml`, fitted to the runs of DT-FM.

    >>> 0 < dtfm_constants().fp16.remote_fraction < dtfm_constants().fp16.local_fraction < 1
    True
    """
    text = (resources.files("jaxpipe.simulate") / "data" / "dtfm.toml").read_text()
    return msgspec.convert(tomllib.loads(text), Constants)
