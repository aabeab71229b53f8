"""Network namespaces joined by links of a cluster's bandwidths: what an MPI library can be run in.

A host is a namespace; the kernel's htb shapes what leaves it. Delays are left out, for they need a
kernel module, netem, that many machines lack. It takes root, and leaves nothing behind.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from experiments.runtime_benchmark.claim import CannotMeasureError
from topo import Cluster, with_slower_links
from topo.emulate import EmulationError, EngineKind, emulated


@contextmanager
def joined(
    cluster: Cluster, *, scale: float = 1.0, is_shaped: bool = True
) -> Iterator[Mapping[str, str]]:
    """Make links `scale` times slower, or none slower; yield the settings that put ranks on them.

    Raises:
        CannotMeasureError: there are no rights or no programs to do so.
    """
    kind = EngineKind.HTB if is_shaped else EngineKind.UNSHAPED
    try:
        with emulated(with_slower_links(cluster, scale=scale), kind=kind) as emulation:
            yield emulation.settings
    except (ValueError, EmulationError) as error:
        raise CannotMeasureError(str(error)) from error
