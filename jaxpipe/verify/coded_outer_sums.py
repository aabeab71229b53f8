"""Outer gradients that islands sum with a codec, on one device: slices of vectors, as of ranks."""

from collections.abc import Sequence
from functools import partial

import jax
import numpy as np

from jaxpipe.collective.codec.codecs import codec_of
from jaxpipe.collective.shards import ElementRange
from jaxpipe.plan import island_of
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.outer_buckets import BucketLayout, OuterBucket, bucket_layouts
from jaxpipe.runtime.stage.trained import is_trained
from jaxpipe.verify.coded_sums import CodedSums
from jaxpipe.verify.one_device import Tensors


class CodedOuterSums:
    """The sums over all islands of a job, with the codec of `outer.codec`."""

    def __init__(self, job: Job) -> None:
        self._sums = CodedSums(
            codec_of(job.outer.codec, top_k_fraction=job.outer.top_k_fraction),
            chunk_bytes=job.comm.chunk_bytes,
            feeds_back=job.outer.feeds_back,
        )
        plan = island_of(job.plan, rank=0, num_islands=job.outer.islands).plan
        self._num_replicas = plan.num_replicas
        self._layouts: dict[OuterBucket, BucketLayout] = {}
        for number in range(plan.pipelines[0].num_stages):
            stage = job.functions(stage=number, rank=plan.rank(replica=0, stage=number)).stage
            self._layouts |= bucket_layouts(
                jax.eval_shape(partial(stage.init, seed=0)),
                stage=number,
                first_layer=stage.layers.start,
                num_fragments=job.outer.fragments,
                has_tied=stage.has_tied_bucket,
                is_trained=partial(is_trained, job.model),
            )

    def total(self, fragment: int, of_islands: Sequence[Tensors]) -> Tensors:
        """Return the sum over islands of the tensors of a fragment; called once for each send."""
        tensors: Tensors = {}
        for bucket, layout in self._layouts.items():
            if bucket.fragment == fragment and (bucket.stage == 0 or not bucket.is_tied):
                vectors = [layout.pack(of_island) for of_island in of_islands]
                slices = [
                    self._of_slice(bucket, vectors, piece)
                    for piece in ElementRange(0, layout.size).cut(self._num_replicas)
                ]
                tensors |= layout.unpack(np.concatenate(slices))
        return tensors

    def _of_slice(
        self, bucket: OuterBucket, vectors: Sequence[np.ndarray], piece: ElementRange
    ) -> np.ndarray:
        """Return the sum of a slice, which one rank of each island exchanges."""
        of_islands = {number: vector[slice(*piece)] for number, vector in enumerate(vectors)}
        return self._sums.total((bucket, piece), of_islands, tuple(of_islands))
