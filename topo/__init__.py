"""Topology: devices, links and clusters. Imports neither jax nor MPI nor jaxpipe."""

from topo.catalogue import load, names, site_positions
from topo.cluster import Cluster, Device, Host, Link
from topo.derive import subcluster, with_slower_links, without_network
from topo.gpu import Gpu, Precision, gpu

__all__ = [
    "Cluster",
    "Device",
    "Gpu",
    "Host",
    "Link",
    "Precision",
    "gpu",
    "load",
    "names",
    "site_positions",
    "subcluster",
    "with_slower_links",
    "without_network",
]
