"""Network: the one model of links and shared NICs, as events and in closed form.

::

    Cluster ── open_links ──► Link, Nic ──► arrival times     simulate, paced, shaped
       │        (events: queues, windows, shared NICs)
       └────── links_between ──► Links ───► seconds           plan: alpha-beta, nothing shared

A clock drives the links: an `EventQueue` in simulated time, or a thread in real time
(`jaxpipe.comm.shaped`). Both forms agree on a message that has the network for itself.
"""

from jaxpipe.network.alpha_beta import Links, links_between, lone_message_s, uniform_links
from jaxpipe.network.event_queue import Clock, EventQueue
from jaxpipe.network.link import Link
from jaxpipe.network.message_costs import MessageCosts
from jaxpipe.network.open_links import Pair, open_links

__all__ = [
    "Clock",
    "EventQueue",
    "Link",
    "Links",
    "MessageCosts",
    "Pair",
    "links_between",
    "lone_message_s",
    "open_links",
    "uniform_links",
]
