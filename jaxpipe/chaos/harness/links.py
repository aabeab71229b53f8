"""The links of an emulated host: taken down, and up again with their routes."""

from dataclasses import dataclass

from jaxpipe.errors import RunError
from jaxpipe.topo.emulate import EmulationError
from jaxpipe.topo.emulate.commands import run as run_program

_DEVICES = ("control", "link0")
"""The way of `mpirun` to its daemon, and that of the ranks' messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CutHost:
    """A host whose links are down; `namespace` is its network, `routes` those that it has lost."""

    namespace: str
    routes: tuple[str, ...]

    def reconnect(self) -> None:
        """Take the links up.

        Raises:
            RunError: `ip` failed.
        """
        for device in _DEVICES:
            ip("-n", self.namespace, "link", "set", device, "up")
        for route in self.routes:
            ip("-n", self.namespace, "route", "replace", *route.split())


def cut_off(namespace: str) -> CutHost:
    """Take all links of a host down.

    Raises:
        RunError: `ip` failed.
    """
    lines = ip("-n", namespace, "route").splitlines()
    routes = tuple(line for line in lines if "kernel" not in line)
    for device in _DEVICES:
        ip("-n", namespace, "link", "set", device, "down")
    return CutHost(namespace=namespace, routes=routes)


def ip(*words: str) -> str:
    """Run `ip`, and return its output.

    Raises:
        RunError: it failed.
    """
    try:
        return run_program("ip", *words)
    except EmulationError as error:
        raise RunError(str(error)) from error
