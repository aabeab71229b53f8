"""An outer loop in a checkpoint: what all islands share once, and what each has of its own.

::

    blocks.0.mlp.up                     the anchor, which every reader of a checkpoint takes; or
                                        what is frozen, and equal on all islands
    momentum.blocks.0.mlp.up            the outer momentum
    pending.blocks.0.mlp.up             a sum that has not been applied yet
    island.1.blocks.0.mlp.up            local parameters; left out where they are the anchor
    island.1.mu.blocks.0.mlp.up         moments of the inner optimizer
    island.1.eager.lead.blocks.0.mlp.up of eager updates; also `eager.sent`, `eager.momentum`
    island.1.counters                   loss scale and skipped steps
    island.1.errors.0.1.0.0             residuals of error feedback, of one replica

Islands that resume may have other stages and replicas, except where a codec feeds errors back. A
run with other islands starts from the mean of these (`met_islands`). Other names are those of
`jaxpipe.runtime.checkpoint.tensor_names`.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from jaxpipe.outer import EagerState, OuterConfig, OuterState, fresh_lead, fresh_state
from jaxpipe.plan import island_of, islands_of
from jaxpipe.runtime.checkpoint import flatten
from jaxpipe.runtime.checkpoint.save_parts import Snapshot
from jaxpipe.runtime.job import Job
from jaxpipe.runtime.outer.island_state import IslandState
from jaxpipe.runtime.outer.met_islands import MetIslands
from jaxpipe.runtime.outer.outer_buckets import (
    TIED_NAME,
    BucketLayout,
    OuterBucket,
    bucket_layouts,
)
from jaxpipe.runtime.outer.outer_exchange import OuterExchange, outer_exchange
from jaxpipe.runtime.outer.outer_loop import OuterLoop
from jaxpipe.runtime.outer.outer_tensor_names import (
    COUNTERS,
    IN_FLIGHT,
    IN_SYNC,
    LEAD,
    LEAD_MOMENTUM,
    MOMENTUM,
    PENDING,
    SENT,
    SHARES,
    counters,
    of_island,
    parameter_of,
    split_island,
)
from jaxpipe.runtime.outer.trained_tensors import first_layer
from jaxpipe.runtime.stage.train_state import TrainState
from jaxpipe.runtime.stage.trained import is_trained
from jaxpipe.runtime.step.worker import Worker
from jaxpipe.runtime.train_snapshot import (
    Saved,
    needed_tensors,
    restore_state,
    to_metadata,
    whole_moments,
)

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
        for stage in state.stages if is_first_replica else ():
            shards.setdefault(f"stage-{stage}", {}).update(_frozen(worker, state, stage))
    leads = _leads(loop)
    for stage in state.stages:
        stage_tensors = _own(loop, state, stage, step=step) | leads.get(stage, {})
        if is_first_replica:
            shards[f"island-{island.number}-stage-{stage}"] = stage_tensors
    if errors := _errors(loop):
        shards[f"island-{island.number}-rank-{worker.everyone.rank}"] = errors
    if worker.transport.rank == 0:
        own_counters = counters(to_metadata(state))
        shards[f"island-{island.number}"] = {of_island(island.number, COUNTERS): own_counters}
    metadata = {
        **worker.whole.description_at(step),
        **to_metadata(state),
        IN_SYNC: loop.is_in_sync(step),
        IN_FLIGHT: sorted(loop.in_flight),
        SHARES: _shares(worker.whole),
    }
    return Snapshot(step=step, shards=shards, metadata=metadata)


def start_outer(worker: Worker, saved: Saved | None) -> tuple[OuterLoop, TrainState, int]:
    """Return the outer loop, the state from which training starts, and the number of steps done.

    `saved` has the islands of the run, or is that of islands that have met.

    Raises:
        CheckpointError: a tensor is missing, corrupt, or of another shape.
    """
    view = None if saved is None else IslandState(saved, number=worker.part.island.number)
    state, step = restore_state(worker, view)
    exchange, layouts = outer_exchange(worker.part), _layouts(worker, state)
    owned = {bucket: layout for bucket, layout in layouts.items() if _is_stepped(bucket)}
    in_flight = () if saved is None else saved.metadata.get(IN_FLIGHT, ())
    # An import may have no adapters: those of the state are fresh.
    is_fresh = isinstance(saved, MetIslands) and not saved.before.is_on
    states = (
        _fresh_states(exchange, owned, _local(worker, state))
        if saved is None or is_fresh
        else {
            bucket: _restored(exchange, bucket, layout, saved) for bucket, layout in owned.items()
        }
    )
    # Islands that have met are ahead of nothing, and have sent nothing that others wait for.
    continued = None if isinstance(saved, MetIslands) else saved
    leads = {
        bucket: fresh_lead(states[bucket].anchor)
        if continued is None
        else _restored_lead(exchange, bucket, layout, continued)
        for bucket, layout in owned.items()
        if worker.whole.outer.eager
    }
    loop = OuterLoop(
        worker,
        exchange,
        layouts=layouts,
        states=states,
        leads=leads,
        sums={
            bucket: _slice(exchange, bucket, _read(saved, layout, PENDING))
            for bucket, layout in owned.items()
            if saved is not None and bucket.fragment in in_flight
        },
        in_flight=in_flight,
    )
    if worker.whole.outer.feeds_back and continued is not None:
        exchange.reducer.errors = _restored_errors(exchange, owned, continued)
    return loop, state, step


def needed_outer_tensors(
    job: Job, stored: Iterable[str], *, rank: int, before: OuterConfig
) -> tuple[str, ...]:
    """Return which of the `stored` tensors a rank may read to resume; compiles nothing.

    `before` is the section `[outer]` of the checkpoint: of other islands, those of all are read.
    """
    island = island_of(job.plan, rank=rank, num_islands=max(1, job.outer.islands))
    inside = island.ranks.index(rank)
    names = {*needed_tensors(replace(job, plan=island.plan), rank=inside), COUNTERS}
    errors = f"errors.{island.plan.replica(inside)}."
    stays = before.islands == job.outer.islands

    def is_needed(name: str) -> bool:
        number, rest = split_island(name)
        if number is not None and number != island.number and stays:
            return False
        return parameter_of(rest) in names or (
            number is not None and rest.startswith(errors) and stays
        )

    return tuple(filter(is_needed, stored))


def _shares(job: Job) -> list[float]:
    """Return the part of the batch of each island."""
    return [island.share for island in islands_of(job.plan, num_islands=job.outer.islands)]


def _layouts(worker: Worker, state: TrainState) -> dict[OuterBucket, BucketLayout]:
    """Return the buckets of all stages of this rank."""
    layouts: dict[OuterBucket, BucketLayout] = {}
    job, rank = worker.job, worker.transport.rank
    for stage, trained in state.stages.items():
        layouts |= bucket_layouts(
            trained.params,
            stage=stage,
            first_layer=first_layer(worker, stage),
            num_fragments=worker.whole.outer.fragments,
            has_tied=job.functions(stage=stage, rank=rank).stage.has_tied_bucket,
            is_trained=partial(is_trained, job.model),
        )
    return layouts


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
    piece = exchange.slice_of(bucket, size=vector.size)
    return vector[piece.start : piece.stop].copy()  # a view would keep the whole vector


def _local(worker: Worker, state: TrainState) -> _Tensors:
    tensors: _Tensors = {}
    for stage, trained in state.stages.items():
        tensors |= flatten(trained.params, first_layer=first_layer(worker, stage))
    return tensors


def _shared(
    loop: OuterLoop, bucket: OuterBucket, layout: BucketLayout, total: np.ndarray | None
) -> _Tensors:
    """Return anchor, momentum and pending sum of a bucket; nothing of the last stage's copy."""
    if bucket not in loop.states:
        return {}
    gather, state = loop.exchange.gather, loop.states[bucket]
    tensors = layout.unpack(gather(bucket, state.anchor, size=layout.size))
    momentum = layout.unpack(gather(bucket, state.momentum, size=layout.size))
    tensors |= {MOMENTUM + name: vector for name, vector in momentum.items()}
    if total is not None:
        pending = layout.unpack(gather(bucket, total, size=layout.size))
        tensors |= {PENDING + name: vector for name, vector in pending.items()}
    return tensors


def _frozen(worker: Worker, state: TrainState, stage: int) -> _Tensors:
    """Return copies of the parameters that no step changes; a tied embedding is in one file."""
    params = flatten(state.stages[stage].params, first_layer=first_layer(worker, stage))
    return {
        name: np.array(tensor)
        for name, tensor in params.items()
        if not is_trained(worker.job.model, name) and (stage == 0 or name != TIED_NAME)
    }


def _own(loop: OuterLoop, state: TrainState, stage: int, *, step: int) -> _Tensors:
    """Return copies of the moments, and of what is trained unless it is the anchor."""
    worker, of_stage = loop.worker, state.stages[stage]
    layer, number = first_layer(worker, stage), worker.part.island.number
    tensors: _Tensors = {}
    for moment, tree in whole_moments(worker, of_stage, stage=stage).items():
        tensors |= flatten(tree, first_layer=layer, prefix=f"{moment}.")
    if not loop.is_in_sync(step):
        local = flatten(of_stage.params, first_layer=layer)
        model = worker.job.model
        tensors |= {name: local[name] for name in local if is_trained(model, name)}
    return {of_island(number, name): np.array(tensor) for name, tensor in tensors.items()}


def _leads(loop: OuterLoop) -> dict[int, _Tensors]:
    """Return by stage what eager updates have of this island; its replicas gather their slices."""
    tensors_of: dict[int, _Tensors] = {}
    for bucket, lead in loop.leads.items():
        size, number = loop.layouts[bucket].size, loop.worker.part.island.number
        of_stage = tensors_of.setdefault(bucket.stage, {})
        for prefix, pieces in (
            (SENT, lead.sent),
            (LEAD, lead.lead),
            (LEAD_MOMENTUM, lead.momentum),
        ):
            vector = loop.exchange.gather(bucket, pieces, size=size)
            tensors = loop.layouts[bucket].unpack(vector)
            of_stage |= {of_island(number, prefix + name): tensors[name] for name in tensors}
    return tensors_of


def _restored_lead(
    exchange: OuterExchange, bucket: OuterBucket, layout: BucketLayout, saved: Saved
) -> EagerState:
    sent, lead, momentum = (
        _slice(exchange, bucket, _read(saved, layout, of_island(exchange.island.number, prefix)))
        for prefix in (SENT, LEAD, LEAD_MOMENTUM)
    )
    return EagerState(sent=sent, lead=lead, momentum=momentum)


def _restored(
    exchange: OuterExchange, bucket: OuterBucket, layout: BucketLayout, saved: Saved
) -> OuterState:
    return OuterState(
        anchor=_slice(exchange, bucket, _read(saved, layout, "")),
        momentum=_slice(exchange, bucket, _read(saved, layout, MOMENTUM)),
    )


def _read(saved: Saved, layout: BucketLayout, prefix: str) -> np.ndarray:
    tensors = saved.read([prefix + name for name in layout.shapes])
    return layout.pack({name: tensors[prefix + name] for name in layout.shapes})


def _errors(loop: OuterLoop) -> _Tensors:
    """Return copies of this rank's residuals; zeros for what it has not sent yet."""
    if not loop.config.feeds_back:
        return {}
    errors, exchange = loop.exchange.reducer.errors, loop.exchange
    return {
        _errors_name(exchange, bucket): errors.get(
            exchange.tag(bucket), np.zeros(state.anchor.size, np.float32)
        ).copy()
        for bucket, state in loop.states.items()
    }


def _restored_errors(
    exchange: OuterExchange, owned: Iterable[OuterBucket], saved: Saved
) -> dict[int, np.ndarray]:
    names = {exchange.tag(bucket): _errors_name(exchange, bucket) for bucket in owned}
    tensors = saved.read(names.values())
    return {tag: np.array(tensors[name]) for tag, name in names.items()}  # they are written to


def _errors_name(exchange: OuterExchange, bucket: OuterBucket) -> str:
    island = exchange.island
    replica = island.plan.replica(exchange.inside.rank)
    where = f"errors.{replica}.{bucket.stage}.{bucket.fragment}.{int(bucket.is_tied)}"
    return of_island(island.number, where)
