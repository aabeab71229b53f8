"""The truth of a run's figures: measured over the links of this machine, or over emulated ones.

Every file, picture and summary of a run has this label. Inside `jaxpipe emulate`, environment
variables say so: ranks cannot tell emulated links from real ones.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from jaxpipe.runtime.run_config import RunConfig, TransportKind
from jaxpipe.topo.emulate.mpi import LINKS, MARK
from jaxpipe.trace import Truth


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTruth:
    """The label of a run's figures; `about` names the emulated links, if they are."""

    truth: Truth
    about: str = ""

    def __str__(self) -> str:
        """Return the label.

        >>> str(RunTruth(truth=Truth.MEASURED))
        'measured on this machine'
        >>> str(RunTruth(truth=Truth.EMULATED, about="links of cluster case1"))
        'emulated: links of cluster case1'
        """
        return f"{self.truth}: {self.about}" if self.about else f"{self.truth} on this machine"


def truth_of(run: RunConfig, environment: Mapping[str, str], *, cluster: str) -> RunTruth:
    """Return the truth of a run that computes, on a cluster of this name.

    >>> shaped = RunConfig(folder="r", transport=TransportKind.SHAPED, link_scale=2.0)
    >>> str(truth_of(shaped, {}, cluster="two-region"))
    'emulated: links of cluster two-region, 2 times slower, by delayed messages'
    >>> str(truth_of(RunConfig(folder="r"), {"JAXPIPE_EMULATION": "jp1"}, cluster="two-region"))
    'emulated: links between network namespaces'
    """
    links = []
    if run.transport is TransportKind.SHAPED:
        times = "" if run.link_scale == 1 else f", {run.link_scale:g} times slower"
        links.append(f"links of cluster {cluster}{times}, by delayed messages")
    if environment.get(MARK):
        links.append(environment.get(LINKS) or "links between network namespaces")
    if not links:
        return RunTruth(truth=Truth.MEASURED)
    return RunTruth(truth=Truth.EMULATED, about="; ".join(links))
