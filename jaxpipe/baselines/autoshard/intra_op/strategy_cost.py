"""What a strategy costs: its collectives, one by one, and its memory on each device."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxpipe.baselines.autoshard.graph import roles_of
from jaxpipe.baselines.autoshard.intra_op.build_problem import Space
from jaxpipe.baselines.autoshard.intra_op.decode import choice_of, number_of, stored_as, table_row
from jaxpipe.baselines.autoshard.intra_op.enumerate_shardings import reduction_collectives
from jaxpipe.baselines.autoshard.intra_op.machine import Machine
from jaxpipe.baselines.autoshard.intra_op.peak_memory import Peak
from jaxpipe.baselines.autoshard.intra_op.tables import Combined
from jaxpipe.baselines.autoshard.resharding import Computed, carried, steps_to
from jaxpipe.baselines.autoshard.strategy import Collective, OperatorChoice, Sharding, collective_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """The bytes that each device holds.

    `activations` are those at the moment when most wait for the backward, `gradients` those when
    there are most; they are not there together.
    """

    parameters: int
    optimizer: int
    batch: int
    activations: int
    gradients: int

    @property
    def peak(self) -> int:
        """What is held when most is held."""
        return self.parameters + self.optimizer + self.batch + max(self.activations, self.gradients)


def collectives_of(space: Space, numbers: Sequence[int]) -> tuple[Collective, ...]:
    """Return the collectives of a step, in order, but for those that are combined: they are last.

    Combined are those of one kind, dtype and group of devices, of arrays on which no product
    depends: the sums of gradients, the gathers of new parameters.
    """
    single: list[Collective] = []
    combined: dict[Combined, list[Collective]] = defaultdict(list)
    for array, collective in _all_collectives(space, numbers):
        if space.tree.final[array]:
            dtype = space.graph.arrays[array].dtype
            combined[collective.kind, collective.axes, dtype].append(collective)
        else:
            single.append(collective)
    together = [
        Collective(
            kind=kind,
            num_bytes=sum(member.num_bytes for member in members),
            axes=axes,
            why=f"{len(members)} of {dtype} as one, the first: {members[0].why}",
        )
        for (kind, axes, dtype), members in combined.items()
    ]
    # Combined ones last, as in the step: no product needs them.
    return (*single, *together)


def memory_of(space: Space, numbers: Sequence[int]) -> Memory:
    """Return what each device holds under a strategy."""
    graph, roles = space.graph, roles_of(space.graph)
    num_bytes = space.problem.memory(numbers)

    def local(paths: tuple[str, ...]) -> int:
        total = 0
        for path in paths:
            layouts = space.layouts.of(graph.arrays[graph.arguments[path]])
            total += int(layouts.num_bytes[number_of(space, graph.arguments[path], numbers)])
        return total

    parameters, optimizer, batch = map(local, (roles.parameters, roles.optimizer, roles.batch))
    arguments = parameters + optimizer + batch
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=batch,
        # Peaks include the arguments, which live throughout.
        activations=round(num_bytes[Peak.ACTIVATIONS]) - arguments,
        gradients=round(num_bytes[Peak.GRADIENTS]) - arguments,
    )


def seconds_of(space: Space, numbers: Sequence[int], machine: Machine) -> float:
    """Return the seconds of a step: its products, its light operators, its collectives."""
    mesh = space.layouts.mesh
    moved_s = sum(
        collective_s(collective, mesh, launch_s=machine.launch_s)
        for collective in collectives_of(space, numbers)
    )
    rows = (
        (space.table(operator), table_row(space, operator, numbers))
        for operator in space.graph.operators
    )
    return moved_s + sum(float(table.computed_s[row]) for table, row in rows)


def _all_collectives(space: Space, numbers: Sequence[int]) -> Iterator[tuple[int, Collective]]:
    """Yield every collective that runs, and the array that it makes."""
    graph, mesh = space.graph, space.layouts.mesh
    choices = _carried(space, numbers)
    stored = {array: stored_as(space, array, numbers) for array in graph.arguments.values()} | {
        result: sharding
        for operator, choice in zip(graph.operators, choices, strict=True)
        for result, sharding in zip(operator.results, choice.results, strict=True)
    }
    reads = _reads(space, numbers, choices)
    # In the order in which arrays are made, so that a list of collectives reads like the step.
    for array in graph.arguments.values():
        yield from _resharded(space, array, stored[array], reads.get(array, {}))
    for operator, choice in zip(graph.operators, choices, strict=True):
        result = operator.results[0]
        for collective in reduction_collectives(
            choice.results[0], choice.partial, graph.arrays[result], mesh
        ):
            why = f"{operator.primitive} {operator.index} sums"
            yield (
                result,
                Collective(
                    kind=collective.kind,
                    num_bytes=collective.num_bytes,
                    axes=collective.axes,
                    why=why,
                ),
            )
        for collective in operator.results:
            yield from _resharded(space, collective, stored[collective], reads.get(collective, {}))


def _carried(space: Space, numbers: Sequence[int]) -> tuple[OperatorChoice, ...]:
    """Return how operators are computed, their partial sums where they are reduced."""
    graph = space.graph
    return carried(
        [
            Computed(
                primitive=operator.primitive,
                inputs=operator.operands,
                outputs=operator.results,
                rule=operator.rule,
            )
            for operator in graph.operators
        ],
        [choice_of(space, operator, numbers) for operator in graph.operators],
        dict(enumerate(graph.arrays)),
        space.layouts.mesh,
        needed=frozenset(graph.results.values()),
    )


def _reads(
    space: Space, numbers: Sequence[int], choices: Sequence[OperatorChoice]
) -> dict[int, dict[Sharding, str]]:
    """Return the layouts in which each array is read, and by what first."""
    graph = space.graph
    readers: dict[int, dict[Sharding, str]] = defaultdict(dict)
    for operator, choice in zip(graph.operators, choices, strict=True):
        for operand, sharding in zip(operator.operands, choice.operands, strict=True):
            if operand is not None:
                why = f"{operator.primitive} {operator.index} reads otherwise"
                readers[operand].setdefault(sharding, why)
    for path, result in graph.results.items():
        argument = graph.arguments.get(path, result)
        readers[result].setdefault(stored_as(space, argument, numbers), f"{path} is stored")
    return readers


def _resharded(
    space: Space, array: int, stored: Sharding, reads: Mapping[Sharding, str]
) -> Iterator[tuple[int, Collective]]:
    layouts = space.layouts.of(space.graph.arrays[array])
    for step in steps_to(layouts, stored, reads):
        if step.collective is not None:
            why = reads.get(step.after, "a step of several")
            words = f"{why}: {step.before}->{step.after}"
            kind, axes = step.collective.kind, step.collective.axes
            yield (
                array,
                Collective(kind=kind, num_bytes=step.collective.num_bytes, axes=axes, why=words),
            )
