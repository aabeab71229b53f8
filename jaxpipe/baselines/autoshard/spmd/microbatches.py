"""Run a step over microbatches in one program: gathers of parameters and sums of gradients once.

A step marks what is summed over examples, its gradients and its loss, with `accumulated`. What
comes before the marks and depends on the batch runs for each microbatch, everything else once::

    parameters ─ gather ─┬─ microbatch 0 ─┐
                         ├─ microbatch 1 ─┼─ local sums ─ reduce ─ optimizer
                         └─ ...          ─┘

A microbatch is a part of what each device has of the batch. By default one microbatch starts when
the one before has ended. In a *duplex* there are two, which do not wait for each other, so that
the collectives of one overlap the products of the other. The second reads its parameters through a
barrier: otherwise XLA merges the products of both halves with the same parameter into one, and both
halves wait for both collectives.

Source: Zhang et al., "HiDup", SoCC 2022, section 3.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import jax
from jax import Array
from jax.ad_checkpoint import checkpoint_name

from jaxpipe.baselines.autoshard.spmd.interpret import Evaluation, Held
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, ProgramOperator
from jaxpipe.baselines.autoshard.strategy import Sharding
from jaxpipe.errors import PlanError

_MARK: Final = "jaxpipe.accumulated"


def accumulated(tree: Any) -> Any:
    """Mark arrays as sums over examples, which microbatches add up; their values stay the same."""
    return jax.tree.map(lambda leaf: checkpoint_name(leaf, _MARK), tree)


@dataclass(frozen=True, slots=True, kw_only=True)
class Phases:
    """The places of operators: run once, for each microbatch, and once afterwards."""

    before: tuple[int, ...]
    repeated: tuple[int, ...]
    after: tuple[int, ...]
    marks: tuple[int, ...]


def phases_of(program: OperatorProgram, batch: Sequence[int]) -> Phases:
    """Return what runs for each microbatch, given the arguments that are the batch.

    Raises:
        PlanError: something else than marked sums reaches the results from the batch.
    """
    on_batch, on_sums = set(batch), set[int]()
    before, repeated, after, marks = [], [], [], []
    for position, operator in enumerate(program.operators):
        is_after = not on_sums.isdisjoint(operator.inputs)
        if is_after and not (on_batch - on_sums).isdisjoint(operator.inputs):
            raise _unmarked(operator.name)
        if is_after:
            after.append(position)
            on_sums.update(operator.outputs)
        elif on_batch.isdisjoint(operator.inputs):
            before.append(position)
        else:
            repeated.append(position)
            on_batch.update(operator.outputs)
            if _is_mark(operator):
                marks.append(position)
                on_sums.update(operator.outputs)
    if not (on_batch - on_sums).isdisjoint(program.results):
        raise _unmarked("a result")
    return Phases(
        before=tuple(before), repeated=tuple(repeated), after=tuple(after), marks=tuple(marks)
    )


def times_of(phases: Phases, num_microbatches: int) -> Mapping[int, int]:
    """Return how often the result of an operator is made in a step, where that is not once."""
    # The sums are local until all microbatches are added: they are reduced once.
    repeated = set(phases.repeated) - set(phases.marks)
    return dict.fromkeys(sorted(repeated), num_microbatches)


def run_microbatches(
    evaluation: Evaluation,
    arguments: Mapping[int, tuple[Sharding, Array]],
    results: Mapping[int, Sharding],
    *,
    batch: Sequence[int],
    num_microbatches: int,
    duplex: bool,
) -> list[Array]:
    """Return the pieces of the results, as `Evaluation.run` does for one microbatch.

    `batch` are the arguments of which each device's piece is divided along its first dim.
    """
    phases = phases_of(evaluation.program, batch)
    unbatched = {number: value for number, value in arguments.items() if number not in batch}
    evaluation.start(unbatched, results)
    evaluation.run_operators(phases.before)
    outputs = [evaluation.program.operators[position].outputs[0] for position in phases.marks]
    total: list[Held] = []
    for index in range(num_microbatches):
        pieces = [_part(arguments[number][1], index, num_microbatches) for number in batch]
        if total and not duplex:
            pieces = _ordered(pieces, total)
        part = evaluation.part(guarded=duplex and index > 0)
        part.hold({n: (arguments[n][0], p) for n, p in zip(batch, pieces, strict=True)})
        part.run_operators(phases.repeated)
        made = [part.arrays[number] for number in outputs]
        total = [*map(_added, total, made)] if total else made
    evaluation.arrays.update(zip(outputs, total, strict=True))
    evaluation.run_operators(phases.after)
    return evaluation.results(results)


def _part(piece: Array, index: int, num_microbatches: int) -> Array:
    size = piece.shape[0] // num_microbatches
    return jax.lax.slice_in_dim(piece, index * size, (index + 1) * size)


def _ordered(pieces: Sequence[Array], total: Sequence[Held]) -> list[Array]:
    """Return pieces that are there once the sums so far are: activations of one microbatch live."""
    sums = [array.pieces[array.stored] for array in total]
    after = jax.lax.optimization_barrier((list(pieces), sums))
    for array, value in zip(total, after[1], strict=True):
        array.pieces[array.stored] = value
    return after[0]


def _added(total: Held, part: Held) -> Held:
    piece = total.pieces[total.stored] + part.pieces[part.stored]
    return Held(total.stored, {total.stored: piece}, total.ends, total.join)


def _is_mark(operator: ProgramOperator) -> bool:
    return operator.name == "name" and operator.params.get("name") == _MARK


def _unmarked(what: str) -> PlanError:
    return PlanError(
        f"microbatches add up what is marked: {what!r} reads the batch past all marks; make the "
        "step with `train_step(..., microbatches=2)` or more, or mark its sums with `accumulated`"
    )
