"""Addresses of hosts: one each in the emulated network, one each beside it, for MPI's launcher.

The emulated network is 10.63.0.0/16 in every emulation, for nobody outside its namespaces sees it.
The network that `mpirun` reaches its daemons by ends on the machine, so each emulation has a /16 of
its own, 10.64.0.0 and on.

>>> data_address(0), data_address(300)
('10.63.0.1', '10.63.1.45')
>>> control_address(2, 0)
'10.66.0.2'
"""

DEVICE = "link0"
"""The interface of the emulated network in each namespace."""

MTU = 60000
DATA_NETWORK = "10.63.0.0/16"
MAX_HOSTS = 2**16 - 3
NUM_CONTROL_NETWORKS = 128
_FIRST_CONTROL = 64
_DESTINATION = 16


def data_address(host: int) -> str:
    """Return a host's address in the emulated network."""
    return _address(63, host + 1)


def control_network(index: int) -> str:
    """Return the network over which ranks are started."""
    return f"10.{_FIRST_CONTROL + index}.0.0/16"


def control_address(index: int, host: int | None) -> str:
    """Return a host's address in that network, or the machine's."""
    return _address(_FIRST_CONTROL + index, 1 if host is None else host + 2)


def host_of_packet(packet: bytes, start: int) -> int:
    """Return the host to which an IPv4 packet goes, from its header at `start`; -1 for others.

    >>> host_of_packet(bytes([0x45]) + bytes(15) + bytes([10, 63, 1, 45]), 0)
    300
    >>> host_of_packet(b"", 0)
    -1
    """
    if len(packet) < start + 20 or packet[start] >> 4 != 4:
        return -1
    a, b, c, d = packet[start + _DESTINATION : start + _DESTINATION + 4]
    return 256 * c + d - 1 if (a, b) == (10, 63) else -1


def _address(network: int, number: int) -> str:
    return f"10.{network}.{number // 256}.{number % 256}"
