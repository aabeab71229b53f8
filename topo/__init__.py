"""Topology: devices, links and clusters. Imports neither jax nor MPI nor jaxpipe."""

from jaxpipe.topo.catalogue import load, names, site_positions
from jaxpipe.topo.cluster import Cluster, Device, Host, Link, Trunk
from jaxpipe.topo.derive import (
    subcluster,
    unshared_regions,
    with_slower_links,
    with_trunks_of_one_pair,
    without_network,
)
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
    "unshared_regions",
    "with_slower_links",
    "with_trunks_of_one_pair",
    "without_network",
]
