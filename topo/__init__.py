"""Where: devices, links and clusters. It knows no jax, no MPI and nothing of jaxpipe."""

from topo.catalogue import load, names
from topo.cluster import Cluster, Device, Link

__all__ = ["Cluster", "Device", "Link", "load", "names"]
