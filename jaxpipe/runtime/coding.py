"""Which codecs a rank uses: for messages between stages, and in sums of gradients."""

from jaxpipe.comm import Codec, Wire, codec_of
from jaxpipe.plan import Plan
from jaxpipe.runtime.settings import CommConfig


def boundary_codecs(comm: CommConfig, plan: Plan, *, rank: int) -> dict[int, Codec]:
    """Return the codec for each rank that holds a stage before or after one that `rank` holds."""
    codec = codec_of(comm.boundary)
    if codec is None:
        return {}
    replica = plan.replica(rank)
    stages = {stage + step for stage in plan.stages(rank) for step in (-1, 1)}
    peers = {
        plan.rank(replica=replica, stage=stage) for stage in stages & set(range(plan.num_stages))
    }
    return dict.fromkeys(peers - {rank}, codec)


def gradient_wire(comm: CommConfig) -> Wire:
    """Return how gradients travel in sums."""
    codec = codec_of(comm.gradients, top_k_fraction=comm.top_k_fraction)
    return Wire(far=codec, chunk_bytes=comm.chunk_bytes)
