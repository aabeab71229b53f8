"""Topology: devices, links and clusters. Imports neither jax nor MPI nor jaxpipe."""

from jaxpipe.topo.catalogue import load, names, site_positions
from jaxpipe.topo.cluster import Cluster, Device, Host, Link, Trunk
from jaxpipe.topo.derive import subcluster, with_slower_links, without_network
from jaxpipe.topo.gpu import Gpu, Precision, gpu
from jaxpipe.topo.this_machine import THIS_MACHINE

__all__ = [
    "THIS_MACHINE",
    "Cluster",
    "Device",
    "Gpu",
    "Host",
    "Link",
    "Precision",
    "Trunk",
    "gpu",
    "load",
    "names",
    "site_positions",
    "subcluster",
    "with_slower_links",
    "without_network",
]
