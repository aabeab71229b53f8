"""An outer loop in a checkpoint: what all islands share once, and what each has of its own.

::

    blocks.0.mlp.up                     the anchor, which every reader of a checkpoint takes
    momentum.blocks.0.mlp.up            the outer momentum
    pending.blocks.0.mlp.up             a sum that has not been applied yet
    island.1.blocks.0.mlp.up            local parameters; left out where they are the anchor
    island.1.mu.blocks.0.mlp.up         moments of the inner optimizer
    island.1.counters                   loss scale and skipped steps
    island.1.errors.0.1.0.0             residuals of error feedback, of one replica

A run that resumes has the same islands; their stages and replicas may be others, except where a
codec feeds errors back. Names are those of `jaxpipe.runtime.checkpoint.tensor_names`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from jaxpipe.outer import OuterState, fresh_state
from jaxpipe.plan import island_of
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.checkpoint.save_parts import Snapshot
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.outer_buckets import BucketLayout, OuterBucket, bucket_layouts
from jaxpipe.runtime.outer.outer_exchange import OuterExchange, outer_exchange
from jaxpipe.runtime.outer.outer_loop import OuterLoop, first_layer
from jaxpipe.runtime.stage.moments import MOMENTS
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.runtime.train_snapshot import (
    LOSS_SCALE,
    SKIPPED_STEPS,
    Saved,
    needed_tensors,
    restore_state,
    to_metadata,
    whole_moments,
)

_IN_SYNC, _IN_FLIGHT = "outer_in_sync", "outer_in_flight"
"""The keys of the metadata for what the step alone does not say, if the run is extended later."""

_MOMENTUM, _PENDING = "momentum.", "pending."
_Tensors = dict[str, np.ndarray]


def outer_snapshot(loop: OuterLoop, state: TrainState, *, step: int) -> Snapshot:
    """Copy the state after `step` inner steps to the host, to be saved; all ranks call this.

    Sums under way are waited for, and saved; training applies them when they are due.
    """
    worker, island = loop.worker, loop.worker.part.island
    shards: dict[str, _Tensors] = {}
    pending = loop.settled_sums()
    is_first_replica = worker.job.plan.replica(worker.transport.rank) == 0
    if island.number == 0:  # the others have the same bits
        for bucket, layout in loop.layouts.items():
            tensors = _shared(loop, bucket, layout, pending.get(bucket))
            if is_first_replica:
                shards.setdefault(f"stage-{bucket.stage}", {}).update(tensors)
    for stage in state.stages:
        own = _own(loop, state, stage, step=step)
        if is_first_replica:
            shards[f"island-{island.number}-stage-{stage}"] = own
    rank = worker.everyone.rank
    if errors := _errors(loop):
        shards[f"island-{island.number}-rank-{rank}"] = errors
    if worker.transport.rank == 0:
        counters = {_of_island(island.number, "counters"): _counters(state)}
        shards[f"island-{island.number}"] = counters
    metadata = {
        **worker.whole.description,
        **to_metadata(state),
        _IN_SYNC: loop.is_in_sync(step),
        _IN_FLIGHT: sorted(loop.in_flight),
    }
    return Snapshot(step=step, shards=shards, metadata=metadata)


def start_outer(worker: Worker, saved: Saved | None) -> tuple[OuterLoop, TrainState, int]:
    """Return the outer loop, the state from which training starts, and the number of steps done.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    view = None if saved is None else IslandState(saved, number=worker.part.island.number)
    state, step = restore_state(worker, view)
    exchange, layouts = outer_exchange(worker.part), _layouts(worker, state)
    owned = {bucket: layout for bucket, layout in layouts.items() if _is_stepped(bucket)}
    in_flight = () if saved is None else saved.metadata.get(_IN_FLIGHT, ())
    loop = OuterLoop(
        worker,
        exchange,
        layouts=layouts,
        states=_fresh_states(exchange, owned, _local(worker, state))
        if saved is None
        else {bucket: _restored(exchange, bucket, each, saved) for bucket, each in owned.items()},
        sums={
            bucket: _slice(exchange, bucket, _read(saved, layout, _PENDING))
            for bucket, layout in owned.items()
            if saved is not None and bucket.fragment in in_flight
        },
        in_flight=in_flight,
    )
    if saved is not None and worker.whole.outer.feeds_back:
        exchange.reducer.errors = _restored_errors(exchange, owned, saved)
    return loop, state, step


def needed_outer_tensors(job: Job, stored: Iterable[str], *, rank: int) -> tuple[str, ...]:
    """Return which of the `stored` tensors a rank may read to resume; compiles nothing."""
    island = island_of(job.plan, rank=rank, num_islands=job.outer.islands)
    plan, number = island.plan, island.number
    inside = island.ranks.index(rank)
    own = needed_tensors(replace(job, plan=plan), rank=inside)
    prefixes = ("", _MOMENTUM, _PENDING, _of_island(number, ""))
    names = {prefix + name for prefix in prefixes for name in own}
    names.add(_of_island(number, "counters"))
    errors = _of_island(number, f"errors.{plan.replica(inside)}.")
    return tuple(name for name in stored if name in names or name.startswith(errors))


@dataclass(frozen=True, slots=True)
class IslandState:
    """What a checkpoint has of one island, under the names of a run without an outer loop."""

    saved: Saved
    number: int

    @property
    def step(self) -> int:
        """The number of inner steps trained."""
        return self.saved.step

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The metadata, with the loss scale and the skipped steps of the island."""
        name = _of_island(self.number, "counters")
        is_scaled, scale, good_steps, skipped = self.saved.read([name])[name].tolist()
        loss_scale = {"scale": scale, "good_steps": int(good_steps)} if is_scaled else None
        return {**self.saved.metadata, LOSS_SCALE: loss_scale, SKIPPED_STEPS: int(skipped)}

    def read(self, names: Iterable[str]) -> dict[str, np.ndarray]:
        """Return some tensors by their names.

        Raises:
            CheckpointError: one of them is missing or corrupt.
        """
        in_sync = bool(self.saved.metadata.get(_IN_SYNC, False))
        stored = {
            name: name if in_sync and not name.startswith(_MOMENTS) else self._own(name)
            for name in names
        }
        found = self.saved.read(stored.values())
        return {name: found[in_file] for name, in_file in stored.items()}

    def _own(self, name: str) -> str:
        return _of_island(self.number, name)


_MOMENTS = tuple(f"{name}." for name in MOMENTS)


def _of_island(number: int, name: str) -> str:
    return f"island.{number}.{name}"


def _layouts(worker: Worker, state: TrainState) -> dict[OuterBucket, BucketLayout]:
    """Return the buckets of all stages of this rank."""
    found: dict[OuterBucket, BucketLayout] = {}
    job, rank = worker.job, worker.transport.rank
    for stage, trained in state.stages.items():
        found |= bucket_layouts(
            trained.params,
            stage=stage,
            first_layer=first_layer(worker, stage),
            num_fragments=worker.whole.outer.fragments,
            has_tied=job.functions(stage=stage, rank=rank).stage.has_tied_bucket,
        )
    return found


def _fresh_states(
    exchange: OuterExchange, owned: Mapping[OuterBucket, BucketLayout], tensors: _Tensors
) -> dict[OuterBucket, OuterState]:
    return {
        bucket: fresh_state(_slice(exchange, bucket, layout.pack(tensors)))
        for bucket, layout in owned.items()
    }


def _is_stepped(bucket: OuterBucket) -> bool:
    """Return whether the ranks of a bucket take its outer steps: not the last stage's copy."""
    return bucket.stage == 0 or not bucket.is_tied


def _slice(exchange: OuterExchange, bucket: OuterBucket, vector: np.ndarray) -> np.ndarray:
    own = exchange.slice_of(bucket, size=vector.size)
    return vector[own.start : own.stop].copy()  # a view would keep the whole vector


def _local(worker: Worker, state: TrainState) -> _Tensors:
    found: _Tensors = {}
    for stage, trained in state.stages.items():
        found |= flatten(trained.params, first_layer=first_layer(worker, stage))
    return found


def _shared(
    loop: OuterLoop, bucket: OuterBucket, layout: BucketLayout, total: np.ndarray | None
) -> _Tensors:
    """Return anchor, momentum and pending sum of a bucket; nothing of the last stage's copy."""
    if bucket not in loop.states:
        return {}
    gather, state = loop.exchange.gather, loop.states[bucket]
    tensors = layout.unpack(gather(bucket, state.anchor, size=layout.size))
    momentum = layout.unpack(gather(bucket, state.momentum, size=layout.size))
    tensors |= {_MOMENTUM + name: each for name, each in momentum.items()}
    if total is not None:
        pending = layout.unpack(gather(bucket, total, size=layout.size))
        tensors |= {_PENDING + name: each for name, each in pending.items()}
    return tensors


def _own(loop: OuterLoop, state: TrainState, stage: int, *, step: int) -> _Tensors:
    """Return copies of the moments, and of the local parameters unless they are the anchor."""
    worker, trained = loop.worker, state.stages[stage]
    layer, number = first_layer(worker, stage), worker.part.island.number
    tensors: _Tensors = {}
    for moment, tree in whole_moments(worker, trained, stage=stage).items():
        tensors |= flatten(tree, first_layer=layer, prefix=f"{moment}.")
    if not loop.is_in_sync(step):
        tensors |= flatten(trained.params, first_layer=layer)
    return {_of_island(number, name): np.array(each) for name, each in tensors.items()}


def _counters(state: TrainState) -> np.ndarray:
    scale = state.loss_scale
    numbers = (0.0, 0.0) if scale is None else (scale.scale, float(scale.good_steps))
    return np.array([float(scale is not None), *numbers, float(state.skipped_steps)])


def _restored(
    exchange: OuterExchange, bucket: OuterBucket, layout: BucketLayout, saved: Saved
) -> OuterState:
    return OuterState(
        anchor=_slice(exchange, bucket, _read(saved, layout, "")),
        momentum=_slice(exchange, bucket, _read(saved, layout, _MOMENTUM)),
    )


def _read(saved: Saved, layout: BucketLayout, prefix: str) -> np.ndarray:
    found = saved.read([prefix + name for name in layout.shapes])
    return layout.pack({name: found[prefix + name] for name in layout.shapes})


def _errors(loop: OuterLoop) -> _Tensors:
    """Return copies of this rank's residuals; zeros for what it has not sent yet."""
    if not loop.config.feeds_back:
        return {}
    found, exchange = loop.exchange.reducer.errors, loop.exchange
    return {
        _errors_name(exchange, bucket): found.get(
            exchange.tag(bucket), np.zeros(state.anchor.size, np.float32)
        ).copy()
        for bucket, state in loop.states.items()
    }


def _restored_errors(
    exchange: OuterExchange, owned: Iterable[OuterBucket], saved: Saved
) -> dict[int, np.ndarray]:
    names = {exchange.tag(bucket): _errors_name(exchange, bucket) for bucket in owned}
    found = saved.read(names.values())
    return {tag: np.array(found[name]) for tag, name in names.items()}  # they are written to


def _errors_name(exchange: OuterExchange, bucket: OuterBucket) -> str:
    island = exchange.island
    replica = island.plan.replica(exchange.inside.rank)
    where = f"errors.{replica}.{bucket.stage}.{bucket.fragment}.{int(bucket.is_tied)}"
    return _of_island(island.number, where)
