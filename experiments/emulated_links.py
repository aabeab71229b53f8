"""Network namespaces joined by shaped links, for the experiments that run ranks in them.

Each host of a cluster becomes a namespace. Emulation needs root and leaves nothing behind.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from jaxpipe.topo import Cluster
from jaxpipe.topo.emulate import EmulationError, EngineKind, emulated


class CannotMeasureError(Exception):
    """This machine lacks what a measurement needs; the message names it."""


@contextmanager
def namespaces(
    cluster: Cluster, *, kind: EngineKind, devices: Sequence[int] | None = None
) -> Iterator[Mapping[str, str]]:
    """Emulate the links of a cluster; yield the environment variables that place ranks on them.

    `devices` lists the device of each rank; by default, rank `r` runs on device `r`.

    Raises:
        CannotMeasureError: privileges or programs are missing.
    """
    try:
        with emulated(cluster, kind=kind, devices=devices) as emulation:
            yield emulation.settings
    except (ValueError, EmulationError) as error:
        raise CannotMeasureError(str(error)) from error
