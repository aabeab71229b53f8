"""Eager updates: an island moves by its own outer gradient at once, by others' a round later.

::

    all-reduce of round r      ├──────── H inner steps of round r + 1 ────────┤ D(r) arrives
    as published, island m     g_m = D(r - 1) + w_m (D_m(r) - D_m(r - 1))
                               Nesterov with g_m moves an anchor and a momentum of its own

D(r) is the sum over islands of w_m D_m(r): each outer gradient counts once on every island, its own
a round earlier. Nesterov is linear in g, so both parts can move for themselves::

    common anchor    moves by D(r - 1): on all islands the same, bit for bit
    lead             moves by w_m (D_m(r) - D_m(r - 1)), with a momentum of its own
    theta_m          common anchor + lead: where round r + 1 starts

The lead is the response to differences whose sum is the latest outer gradient alone, so it stays as
small as one of them. At the end of a run it is dropped: by then the common anchor has all of them.

Source: "Eager Updates For Overlapped Communication and Computation in DiLoCo", arXiv 2502.12996.
"""

from dataclasses import dataclass

import numpy as np

from jaxpipe.outer.outer_update import OuterOptimizer, OuterState, Vector, outer_step


@dataclass(frozen=True, slots=True, kw_only=True)
class EagerState:
    """What an island is ahead of the common anchor; `sent` is w_m D_m of its latest round."""

    sent: Vector
    lead: Vector
    momentum: Vector


def fresh_lead(anchor: Vector) -> EagerState:
    """Return the state before the first outer step."""
    zeros = np.zeros_like(anchor)
    return EagerState(sent=zeros, lead=zeros, momentum=zeros)


def eager_step(state: EagerState, gradient: Vector, optimizer: OuterOptimizer) -> EagerState:
    """Return the state after an island has sent `gradient`, its weight times (theta_m - local).

    >>> state = fresh_lead(np.float32([0.0]))
    >>> eager_step(state, np.float32([0.5]), OuterOptimizer(learning_rate=1, momentum=0.5)).lead
    array([-0.75], dtype=float32)
    """
    before = OuterState(anchor=state.lead, momentum=state.momentum)
    after = outer_step(before, gradient - state.sent, optimizer)
    return EagerState(sent=gradient, lead=after.anchor, momentum=after.momentum)
