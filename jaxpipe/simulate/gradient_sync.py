"""All that a step of a plan sums, as messages: gradients of stages, a tied embedding's, scalars."""

from collections.abc import Sequence

from jaxpipe.collective import SyncTree
from jaxpipe.plan import Plan
from jaxpipe.schedule import Bucket
from jaxpipe.simulate.collective import Collective, tree_sum
from jaxpipe.simulate.summed import all_reduce_messages

_SCALARS_BYTES = 64
"""Loss, norm and counters."""


def gradient_sums(
    plan: Plan, *, stage_bytes: Sequence[float], embed_bytes: float, chunk_bytes: float
) -> dict[Bucket, tuple[Collective, ...]]:
    """Return the collectives of one step, over ranks.

    `stage_bytes` are those of each stage's gradients, `embed_bytes` of them the token embedding's.
    If that is tied, it is summed with the last stage's, and not with the first stage's own.

    Raises:
        PlanError: the plan leaves sums to a library, of which nothing is known.
    """
    shares = plan.tied and plan.num_stages > 1
    own = [each - (embed_bytes if shares and not n else 0) for n, each in enumerate(stage_bytes)]

    def summed(tree: SyncTree, num_bytes: float) -> Collective:
        return all_reduce_messages(
            plan.all_reduce, tree, num_bytes=num_bytes, chunk_bytes=chunk_bytes
        )

    sums: dict[Bucket, tuple[Collective, ...]] = {
        Bucket.SCALARS: (tree_sum(plan.sync_all, _SCALARS_BYTES, num_chunks=1),)
    }
    if plan.num_replicas > 1:
        sums[Bucket.STAGE] = tuple(
            summed(tree, num_bytes) for tree, num_bytes in zip(plan.sync, own, strict=True)
        )
    if shares:
        sums[Bucket.TIED] = (summed(plan.sync_shared, embed_bytes),)
    return sums
