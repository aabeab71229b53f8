"""Addresses of hosts: one in the emulated network, and one in the control network of `mpirun`.

The emulated network is 10.63.0.0/16 in every emulation, since it is not visible outside its
namespaces. The control network, over which `mpirun` reaches its daemons, ends on the machine, so
each emulation has a /16 of its own, from 10.64.0.0 upwards.

>>> data_address(0), data_address(300)
('10.63.0.1', '10.63.1.45')
>>> control_address(2, 0)
'10.66.0.2'
"""

DEVICE = "link0"
"""The interface of the emulated network in each namespace."""

DATA_NETWORK = "10.63.0.0/16"
MAX_HOSTS = 2**16 - 3  # of 2**16: the network, the machine and the broadcast address are none
NUM_CONTROL_NETWORKS = 128
_FIRST_CONTROL = 64
_DESTINATION = 16  # the byte in an IPv4 header (RFC 791)


def data_address(host: int) -> str:
    """Return the address of a host in the emulated network."""
    return _address(63, host + 1)


def control_network(index: int) -> str:
    """Return the control network, over which ranks are started."""
    return f"10.{_FIRST_CONTROL + index}.0.0/16"


def control_address(index: int, host: int | None) -> str:
    """Return the address of a host in the control network; that of the machine for None."""
    return _address(_FIRST_CONTROL + index, 1 if host is None else host + 2)


def host_of_packet(packet: bytes, start: int) -> int:
    """Return the destination host of an IPv4 packet, from its header at `start`; -1 for others.

    >>> host_of_packet(bytes([0x45]) + bytes(15) + bytes([10, 63, 1, 45]), 0)
    300
    >>> host_of_packet(b"", 0)
    -1
    """
    # 4 is the version: IPv6 is switched off, but other packets may come.
    if len(packet) < start + 20 or packet[start] >> 4 != 4:
        return -1
    a, b, c, d = packet[start + _DESTINATION : start + _DESTINATION + 4]
    return 256 * c + d - 1 if (a, b) == (10, 63) else -1


def _address(network: int, number: int) -> str:
    return f"10.{network}.{number // 256}.{number % 256}"
