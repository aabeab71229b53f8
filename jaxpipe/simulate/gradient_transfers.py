"""The collectives of a step of a plan: gradients, scalars, and parameters after the update."""

from collections.abc import Sequence
from math import ceil

from jaxpipe.collective import (
    NO_CODING,
    AllReduceKind,
    Coding,
    Collective,
    SyncTree,
    all_gather_transfers,
    all_reduce_transfers,
    ranks,
)
from jaxpipe.plan import Plan
from jaxpipe.schedule import Bucket

_SCALARS_BYTES = 64
"""Loss, gradient norm and counters."""


def gradient_collectives(
    plan: Plan,
    *,
    segment_bytes: Sequence[float],
    embed_bytes: float,
    chunk_bytes: float,
    far_ratio: float = 1.0,
    far_coding: Coding = NO_CODING,
) -> dict[Bucket, tuple[Collective, ...]]:
    """Return the collectives of one step, over ranks.

    `segment_bytes` are the bytes of each segment's gradients, `embed_bytes` those of the token
    embedding among them. A tied embedding is reduced with the last stage's copy, apart from the
    first segment's gradients. A codec leaves `far_ratio` of the bytes across the root of a tree,
    and takes the seconds of `far_coding` for each byte that it encodes.

    Raises:
        PlanError: the plan uses the native all-reduce of a library, whose messages are not known.
    """
    is_shared = plan.shares_embedding
    # Profiles count a tied embedding in the first stage only.
    own = [each - (embed_bytes * (is_shared and not n)) for n, each in enumerate(segment_bytes)]

    def all_reduce(tree: SyncTree, num_bytes: float) -> Collective:
        return all_reduce_transfers(
            plan.all_reduce,
            tree,
            num_bytes=num_bytes,
            chunk_bytes=chunk_bytes,
            far_ratio=far_ratio,
            far_coding=far_coding,
        )

    # The runtime reduces scalars along the tree, whatever the all-reduce of gradients.
    scalars = all_reduce_transfers(AllReduceKind.TREE, plan.sync_all, num_bytes=_SCALARS_BYTES)
    collectives: dict[Bucket, tuple[Collective, ...]] = {Bucket.SCALARS: (scalars,)}
    if plan.num_replicas > 1:
        collectives[Bucket.STAGE] = tuple(
            all_reduce(tree, num_bytes) for tree, num_bytes in zip(plan.sync, own, strict=True)
        )
    if is_shared:
        collectives[Bucket.TIED] = (all_reduce(plan.sync_shared, embed_bytes),)
    return collectives


def parameter_gathers(
    plan: Plan, *, segment_bytes: Sequence[float], chunk_bytes: float
) -> tuple[Collective, ...]:
    """Return the all-gathers after an update with a sharded optimizer (ZeRO-1), over ranks.

    `segment_bytes` are the bytes of the parameters of each segment that replicas update in parts:
    all that are trained but for a tied embedding, which each copy updates whole; none if the
    optimizer is not sharded. Messages have at most `chunk_bytes`.
    """

    def all_gather(tree: SyncTree, num_bytes: float) -> Collective:
        order = ranks(tree)
        if len(order) == 1 or not num_bytes:
            return ()
        share = num_bytes / len(order)
        num_chunks = max(1, ceil(share / chunk_bytes))
        return all_gather_transfers(order, num_bytes=num_bytes, num_chunks=num_chunks)

    return tuple(map(all_gather, plan.sync, segment_bytes))
