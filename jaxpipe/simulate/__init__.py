"""How long: an event-driven simulator of plans, and the published systems as plans."""

from jaxpipe.simulate.collective import (
    Collective,
    Transfer,
    barrier,
    binary_tree,
    central_server,
    chain,
    ring,
    sharded_server,
)
from jaxpipe.simulate.events import simulate
from jaxpipe.simulate.job import Job, Phase
from jaxpipe.simulate.wire import Wire

__all__ = [
    "Collective",
    "Job",
    "Phase",
    "Transfer",
    "Wire",
    "barrier",
    "binary_tree",
    "central_server",
    "chain",
    "ring",
    "sharded_server",
    "simulate",
]
