"""A brief measurement of a model: three stages with few layers, of which few functions compile.

::

    first     embedding + 1 block          embedding = first - block
    middle    1 to 4 blocks                block     = middle / blocks
    last      1 block + head, loss         head      = last - block

Where layers differ, they count in proportion to their FLOPs.

They are stages of the runtime, so that adapters, frozen parameters and dtypes count. Their forwards
and backwards are called in turn, as a rank calls them; the optimizer is that of the blocks, and
takes as long for each trained parameter of the ends.

The calls for all microbatch sizes are interleaved, too: their seconds per token differ by a few
percent, and the speed of a shared machine drifts by more within seconds.

Compilation takes most of the time. So the ends are measured with one size of microbatches, and
count in proportion to the samples of the others; and the processes of the cores compile different
functions first, then read each other's from the compile cache.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from statistics import mean, median

import jax

from jaxpipe.finetune.trained_parameters import all_parameters, frozen_rows, trained_parameters
from jaxpipe.finetune.tuned_model import tuned
from jaxpipe.models import (
    activation_bytes,
    build_model,
    layer_backward_flops,
    layer_config,
    layer_forward_flops,
    num_parameters,
)
from jaxpipe.plan.cost import Part, Profile, Software
from jaxpipe.profile.brief_stage import (
    BriefStage,
    BriefUpdate,
    BusyStage,
    Program,
    StageWeights,
    call_seconds,
    copy_seconds,
)
from jaxpipe.profile.measuring_process import Parent
from jaxpipe.profile.profile_task import ProfileTask
from jaxpipe.profile.timing import Clock
from jaxpipe.runtime.process.compile_cache import publish
from jaxpipe.runtime.stage.functions import StageFunctions, Work
from jaxpipe.runtime.stage.model import Model
from jaxpipe.runtime.stage.stage import Stage
from jaxpipe.schedule import Op

_ROUNDS, _LEAST_ROUNDS = 15, 5
_BUDGET_S = 1.5
"""For each size of microbatch: of all calls, without the first of each."""
_MOST_BLOCKS, _CACHED_BYTES = 4, 2**24
"""Blocks are measured in a row until their parameters exceed a core's caches, as in a stage."""
_COPIED_BYTES = 2**22
_CALLS_OF_UPDATE = 5
_INSTRUCTION_S, _LOSS_S, _MESSAGE_S, _STEP_S = 100e-6, 200e-6, 250e-6, 4e-3
"""The interpreter's own work for a compute, for a loss, for either end of a message, and for a step
with its scalars and samples: medians in traces of runs of two ranks on an AMD EPYC, November 2026.
"""


def measure_briefly(task: ProfileTask, *, clock: Clock, parent: Parent) -> Profile:
    """Return the profile of a task; its `sizes` are those of the other microbatches.

    `parent` observes each step of it.
    """
    model = tuned(build_model(task.model), lora=task.lora, frozen=task.frozen)
    with jax.default_matmul_precision(task.matmul_precision.jax_name):
        blocks = {
            size: BriefStage(_functions(task, model, 1, microbatch=size))
            for size in task.microbatches
        }
        ends = tuple(
            BriefStage(_functions(task, model, index, microbatch=_usual_size(task)))
            for index in (0, 2)
        )
        update = BriefUpdate(blocks[min(blocks)])
        parts = (*blocks.values(), *ends, update)
        programs = parent.in_turn([program for part in parts for program in part.programs])
        num_own = ceil(len(programs) / parent.num_processes)
        steps = _Steps(parent, total=num_own + 3)
        _compile(programs, num_own=num_own, steps=steps)
        sizes = ", ".join(map(str, blocks))
        steps.begin(f"forward and backward, microbatches of {sizes}", times=True)
        weights = StageWeights(blocks[min(blocks)])
        call_s = call_seconds(weights, clock)
        of_blocks, of_ends = stage_seconds(
            tuple(blocks.values()), ends, weights, call_s=call_s, clock=clock
        )
        steps.begin("optimizer, and the work of a rank beside its layers", times=True)
        update_s = update.seconds(clock)
        byte_s = copy_seconds(_COPIED_BYTES, clock) / _COPIED_BYTES
    kept_bytes = {size: block.kept_bytes for size, block in blocks.items()}
    of_sizes = dict(zip(blocks, of_blocks, strict=True))
    first, *others = _profiles(task, of_sizes, of_ends, kept_bytes)
    software = Software(
        call_s=_INSTRUCTION_S + call_s,
        message_s=_MESSAGE_S,
        byte_s=byte_s,
        step_s=_STEP_S + _CALLS_OF_UPDATE * call_s,
    )
    # That of the blocks of the stage, without its calls.
    own_s = max(0.0, update_s - _CALLS_OF_UPDATE * call_s) / _num_blocks(task)
    profile = replace(first, sizes=tuple(others))
    return _with_rest(profile, model, update_s=own_s, software=software)


class _Steps:
    """The steps of the measurement, said before each."""

    def __init__(self, parent: Parent, *, total: int) -> None:
        self._parent, self._total, self._number = parent, total, 0

    def begin(self, detail: str, *, times: bool = False) -> None:
        self._number += 1
        self._parent.observe(f"{self._number} of {self._total}: {detail}", times=times)


def _compile(programs: Sequence[Program], *, num_own: int, steps: _Steps) -> None:
    """Compile the first programs, then all: the others come from the cache.

    Each process begins with other programs, and meets the others before each.
    """
    for program in programs[:num_own]:
        steps.begin("compiling")
        program.compile()
        publish(os.environ)
    steps.begin("reading what other cores have compiled")
    publish(os.environ)
    for program in programs[num_own:]:
        program.compile()


def stage_seconds(
    blocks: Sequence[BriefStage],
    ends: Sequence[BriefStage],
    weights: StageWeights,
    *,
    call_s: float,
    clock: Clock,
) -> tuple[Sequence[Mapping[Op, float]], Sequence[Mapping[Op, float]]]:
    """Return the seconds of forwards and backwards of blocks and of ends, which are called in turn.

    `blocks` are one stage, of these weights, with several microbatch sizes. `call_s`, the seconds
    of a call that computes nothing, is subtracted from each.
    """
    busy = [BusyStage(block, weights) for block in blocks]
    busy += [BusyStage(end, StageWeights(end)) for end in ends]
    rounds: list[list[Mapping[Op, float]]] = []
    start_s, budget_s = clock(), _BUDGET_S * len(blocks)
    for stage in busy:
        stage.seconds(clock)  # the first calls are slower
    while len(rounds) < _ROUNDS and (len(rounds) < _LEAST_ROUNDS or clock() - start_s < budget_s):
        rounds.append([stage.seconds(clock) for stage in busy])
    usual = [
        {op: usual_s([seconds[n][op] for seconds in rounds]) - call_s for op in rounds[0][n]}
        for n in range(len(busy))
    ]
    return usual[: len(blocks)], usual[len(blocks) :]


def _profiles(
    task: ProfileTask,
    of_sizes: Mapping[int, Mapping[Op, float]],
    of_ends: Sequence[Mapping[Op, float]],
    kept_bytes: Mapping[int, int],
) -> Iterator[Profile]:
    """Yield the profile of each size of microbatches, without parameters."""
    num_blocks, usual_size = _num_blocks(task), _usual_size(task)
    block = {
        size: {op: blocks_s / num_blocks for op, blocks_s in seconds.items()}
        for size, seconds in of_sizes.items()
    }
    embed, head = (_part(_beyond(end, block[usual_size])) for end in of_ends)
    for size in task.microbatches:
        shape = {"batch": size, "sequence": task.model.sequence}
        flops = [
            layer_forward_flops(config, **shape)
            + getattr(layer_backward_flops(config, **shape), task.remat)
            for config in (layer_config(task.model, n) for n in range(task.model.num_layers))
        ]
        measured = sum(flops[:num_blocks]) / num_blocks
        layer = _part(block[size], kept_bytes=kept_bytes[size] // num_blocks)
        head_of_size = head.scaled(size / usual_size)
        yield Profile(
            device="this machine",
            flops_per_s=measured / (layer.forward_s + layer.backward_s),
            microbatch=size,
            activation_bytes=activation_bytes(task.model, **shape),
            embed=embed.scaled(size / usual_size),
            layers=tuple(
                replace(layer.scaled(number / measured), kept_bytes=layer.kept_bytes)
                for number in flops
            ),
            head=replace(head_of_size, forward_s=head_of_size.forward_s + _LOSS_S),
        )


def _usual_size(task: ProfileTask) -> int:
    """Return the size of microbatches with which the ends are measured."""
    return task.microbatches[len(task.microbatches) // 2]


def usual_s(seconds: Sequence[float]) -> float:
    """Return the mean without pauses, which are longer than twice the median.

    A step is a sum of many calls: on a machine that others use as well it grows with their mean,
    which is more than their median.

    >>> usual_s([1.0, 1.0, 1.3, 9.0])
    1.1
    """
    longest_s = 2 * median(seconds)
    return mean(each_s for each_s in seconds if each_s <= longest_s)


def _beyond(with_block: Mapping[Op, float], block: Mapping[Op, float]) -> dict[Op, float]:
    """Return the seconds that an end adds to a block; noise may make them less than 0."""
    return {op: max(0.0, seconds - block[op]) for op, seconds in with_block.items()}


def _part(seconds: Mapping[Op, float], *, kept_bytes: int = 0) -> Part:
    backward_s = seconds[Op.BACKWARD]
    return Part(
        forward_s=seconds[Op.FORWARD],
        backward_s=backward_s,
        backward_input_s=seconds[Op.BACKWARD_INPUT],
        backward_weight_s=min(seconds[Op.BACKWARD_WEIGHT], backward_s),
        kept_bytes=kept_bytes,
    )


def _with_rest(profile: Profile, model: Model, *, update_s: float, software: Software) -> Profile:
    """Return the profile, and those of its sizes, with parameters, updates and software."""
    every, trained, frozen = all_parameters(model), trained_parameters(model), frozen_rows(model)
    each_s = update_s / max(1, trained.layer)

    def part(of: Part, name: str, rows: int = 0) -> Part:
        parameters, num_trained = getattr(every, name), getattr(trained, name)
        return replace(
            of,
            parameters=parameters,
            trained=None if num_trained == parameters else num_trained,
            update_s=each_s * num_trained,
            frozen_rows=rows,
        )

    return replace(
        profile,
        embed=part(profile.embed, "embed"),
        layers=tuple(
            part(layer, "layer", rows) for layer, rows in zip(profile.layers, frozen, strict=True)
        ),
        head=part(profile.head, "head"),
        software=software,
        sizes=tuple(
            _with_rest(size, model, update_s=update_s, software=software) for size in profile.sizes
        ),
    )


def _num_blocks(task: ProfileTask) -> int:
    block_bytes = 4 * num_parameters(task.model, layers=1, embed=False, head=False)
    return min(_MOST_BLOCKS, task.model.num_layers, ceil(_CACHED_BYTES / block_bytes))


def _functions(task: ProfileTask, model: Model, index: int, *, microbatch: int) -> StageFunctions:
    last = task.model.num_layers - 1
    layers = (range(1), range(_num_blocks(task)), range(last, last + 1))[index]
    return StageFunctions(
        stage=Stage(
            model=model,
            index=index,
            num_stages=3,
            layers=layers,
            remat=task.remat,
            loop=task.loop,
        ),
        work=Work(
            microbatch=microbatch,
            sequence=task.model.sequence,
            batch=microbatch,
            num_steps=1,
            seed=0,
        ),
        optimizer=task.optimizer,
    )
