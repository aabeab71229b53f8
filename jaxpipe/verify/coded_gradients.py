"""Gradients that replicas sum with a codec, on one device: vectors as ranks make them of theirs.

::

    gradients of each replica ──► vectors of its ranks ──► coded sums ──► gradients of the model

A tied embedding has a gradient of its embedding and one of its head, which the ranks of the first
and the last stage bring. Which tensors share a vector is that of the run.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from jaxpipe.collective.codec.codecs import codec_of
from jaxpipe.plan import Island
from jaxpipe.runtime.checkpoint import flatten, restore
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.stage.gradient_buckets import Buckets, pack, unpack
from jaxpipe.runtime.stage.model import Parameters
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.runtime.stage.trained import restrict, trained
from jaxpipe.schedule import Bucket
from jaxpipe.verify.coded_sums import CodedSums


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaGradients:
    """The gradients of the summed loss of a replica: `of_table` is what its head adds to a table.

    It is empty unless a tied embedding has a vector of its own.
    """

    tree: Parameters
    of_table: Mapping[str, Any]

    def whole(self) -> Parameters:
        """Return the gradients, with those of a tied embedding added."""
        embed = self.tree["embed"]
        added = {name: np.add(embed[name], leaf) for name, leaf in self.of_table.items()}
        return {**self.tree, "embed": {**embed, **added}}


class CodedGradients:
    """The sums over the replicas of an island, with the codec of `comm.gradients`."""

    def __init__(self, job: Job, island: Island) -> None:
        self._job = replace(job, plan=island.plan)
        self._sums = CodedSums(
            codec_of(job.comm.gradients, top_k_fraction=job.comm.top_k_fraction),
            chunk_bytes=job.comm.chunk_bytes,
            feeds_back=job.comm.feeds_back,
        )
        self._loss_scale = 1.0

    def total(
        self, of_replicas: Sequence[ReplicaGradients], *, factor: float, loss_scale: float
    ) -> Parameters:
        """Return the sum, from gradients times `factor`, as they cross; called once a step."""
        self._sums.rescale(loss_scale / self._loss_scale)
        self._loss_scale = loss_scale
        vectors: dict[tuple[Bucket, int | None], dict[int, np.ndarray]] = {}
        for replica, gradients in enumerate(of_replicas):
            for stage in self._stages(replica):
                rank = self._job.plan.rank(replica=replica, stage=stage.index)
                for key, vector in self._brought(stage, replica, gradients, factor).items():
                    of_ranks = vectors.setdefault(key, {})
                    of_ranks[rank] = of_ranks.get(rank, 0.0) + vector
        totals: dict[Hashable, np.ndarray] = {}
        for (bucket, segment), of_ranks in vectors.items():
            tree = self._job.plan.tree(bucket, segment=segment)
            totals[bucket, segment] = self._sums.total((bucket, segment), of_ranks, tree) / factor
        return self._joined(totals, like=of_replicas[0].tree)

    def _stages(self, replica: int) -> list[Stage]:
        plan = self._job.plan
        numbers = range(plan.pipelines[replica].num_stages)
        ranks = [plan.rank(replica=replica, stage=number) for number in numbers]
        functions = (self._job.functions(stage=n, rank=rank) for n, rank in enumerate(ranks))
        return [of_stage.stage for of_stage in functions]

    def _brought(
        self, stage: Stage, replica: int, gradients: ReplicaGradients, factor: float
    ) -> dict[tuple[Bucket, int | None], np.ndarray]:
        """Return the vectors of the rank of a stage, by bucket and segment."""
        tree = gradients.tree
        if stage.is_last and gradients.of_table:
            embed = {**tree["embed"], **gradients.of_table}
            tree = gradients.whole() if stage.is_first else {**tree, "embed": embed}
        tree = self._of_stage(stage, tree)
        scaled = jax.tree.map(lambda leaf: np.asarray(leaf) * factor, tree)
        buckets = pack(scaled, tied=stage.has_tied_bucket, segments=stage.segments)
        return {
            key: np.asarray(buckets[key[0]][position])
            for key, position in self._keys(stage, replica, buckets).items()
        }

    def _keys(
        self, stage: Stage, replica: int, buckets: Any
    ) -> dict[tuple[Bucket, int | None], int]:
        """Return the position of each vector in its bucket."""
        segments = self._job.plan.segments_of(replica=replica, stage=stage.index)
        keys: dict[tuple[Bucket, int | None], int] = {
            (Bucket.STAGE, segment): position for position, segment in enumerate(segments)
        }
        return {**keys, (Bucket.TIED, None): 0} if Bucket.TIED in buckets else keys

    def _of_stage(self, stage: Stage, tree: Parameters) -> Parameters:
        """Return the trained part of a tree that a stage holds."""
        shapes = jax.eval_shape(lambda: stage.init(seed=0))
        part = restrict(tree, trained(self._job.model, shapes))
        first, last = stage.layers.start, stage.layers.stop
        return {**part, "blocks": jax.tree.map(lambda leaf: leaf[first:last], part["blocks"])}

    def _joined(self, totals: Mapping[Hashable, np.ndarray], *, like: Parameters) -> Parameters:
        """Return the gradients of the whole model; those of what is frozen are 0."""
        named = flatten(jax.tree.map(np.zeros_like, like), first_layer=0)
        for stage in self._stages(0):
            part = self._of_stage(stage, like)
            keys = self._keys(stage, 0, (Bucket.TIED,) if stage.has_tied_bucket else ())
            buckets: Buckets = {}
            for bucket, segment in keys:
                buckets[bucket] = (*buckets.get(bucket, ()), totals[bucket, segment])
            tree = unpack(buckets, part, tied=stage.has_tied_bucket, segments=stage.segments)
            named |= flatten(tree, first_layer=stage.layers.start)
        return restore(like, named, first_layer=0)
