"""The address at which a supervisor or a merge server listens, and its desk there."""

from collections.abc import Sequence

from jaxpipe.errors import ConfigError
from jaxpipe.run.hosts.join_desk import JoinDesk
from jaxpipe.run.hosts.join_run import where
from jaxpipe.run.hosts.join_words import is_host

_MOST_PORT = 65535


def listen_address(text: str) -> tuple[str, int]:
    """Return host and port of `--listen`; an empty host is all addresses, port 0 any free one.

    >>> listen_address("10.0.0.1:4711"), listen_address("[fd00::1]:4711"), listen_address(":0")
    (('10.0.0.1', 4711), ('fd00::1', 4711), ('', 0))

    Raises:
        ConfigError: it is no address.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= _MOST_PORT
    if host.startswith("[") and host.endswith("]") and ":" in host:
        host = host[1:-1]
    elif ":" in host:  # IPv6 without brackets: which part is the port?
        is_port = False
    if not colon or not is_port or (host and not is_host(host)):
        raise ConfigError(
            f"hosts join at an address with a port: `--listen` is {text!r:.80}; give HOST:PORT, "
            "such as 10.0.0.1:4711 or [fd00::1]:4711"
        )
    return host, int(port)


def desk_at(key: str, *, addresses: Sequence[str], port: int) -> JoinDesk:
    """Return a desk for hosts with the `key`, in hexadecimal digits.

    Raises:
        ConfigError: an address cannot be used.
    """
    try:
        return JoinDesk(bytes.fromhex(key), addresses=addresses, port=port)
    except OSError as error:
        shown = ", ".join(where(address, port) for address in addresses)
        raise ConfigError(
            f"`--listen` must be a free address of this host, is {shown}: {error.strerror or error}"
        ) from error
