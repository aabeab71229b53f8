"""What a strategy costs: its collectives, one by one, and its memory on each device."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxpipe.autoshard.graph import roles_of
from jaxpipe.autoshard.intra_op.build_problem import Space
from jaxpipe.autoshard.intra_op.decode import choice_of, number_of, stored_as, table_row
from jaxpipe.autoshard.intra_op.enumerate_shardings import reduction_collectives
from jaxpipe.autoshard.intra_op.peak_memory import Peak
from jaxpipe.autoshard.intra_op.tables import Combined
from jaxpipe.autoshard.strategy import Collective


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


def collectives_of(space: Space, chosen: Sequence[int]) -> tuple[Collective, ...]:
    """Return the collectives of a step, in order, but for those that are combined: they are last.

    Combined are those of one kind, dtype and group of devices, of arrays on which no product
    depends: the sums of gradients, the gathers of new parameters.
    """
    single: list[Collective] = []
    combined: dict[Combined, list[Collective]] = defaultdict(list)
    for array, collective in _all_collectives(space, chosen):
        if space.tree.final[array]:
            dtype = space.graph.arrays[array].dtype
            combined[collective.kind, collective.axes, dtype].append(collective)
        else:
            single.append(collective)
    together = [
        Collective(
            kind=kind,
            num_bytes=sum(each.num_bytes for each in members),
            axes=axes,
            why=f"{len(members)} of {dtype} as one, the first: {members[0].why}",
        )
        for (kind, axes, dtype), members in combined.items()
    ]
    # Combined ones last, as in the step: no product needs them.
    return (*single, *together)


def memory_of(space: Space, chosen: Sequence[int]) -> Memory:
    """Return what each device holds under a strategy."""
    graph, roles = space.graph, roles_of(space.graph)
    held = space.problem.memory(chosen)

    def local(paths: tuple[str, ...]) -> int:
        total = 0
        for path in paths:
            layouts = space.layouts.of(graph.arrays[graph.arguments[path]])
            total += int(layouts.num_bytes[number_of(space, graph.arguments[path], chosen)])
        return total

    parameters, optimizer, batch = map(local, (roles.parameters, roles.optimizer, roles.batch))
    arguments = parameters + optimizer + batch
    return Memory(
        parameters=parameters,
        optimizer=optimizer,
        batch=batch,
        # Peaks include the arguments, which live throughout.
        activations=round(held[Peak.ACTIVATIONS]) - arguments,
        gradients=round(held[Peak.GRADIENTS]) - arguments,
    )


def _all_collectives(space: Space, chosen: Sequence[int]) -> Iterator[tuple[int, Collective]]:
    """Yield every collective, and the array that it makes."""
    graph, mesh = space.graph, space.layouts.mesh
    for operator in graph.operators:
        table, row = space.table(operator), table_row(space, operator, chosen)
        for operand, numbers in zip(operator.operands, table.operands, strict=True):
            if operand is not None and numbers is not None:
                why = f"{operator.primitive} {operator.index} reads otherwise"
                followed = space.tree.followed[operator.index]
                # As in the tables: the gather of a followed operand is charged to the result.
                made = operand
                if followed is not None and operator.operands[followed] == operand:
                    made = operator.results[0]
                yield from _reshard(space, operand, int(numbers[row]), chosen, (made, why))
        result = operator.results[0]
        choice = choice_of(space, operator, chosen)
        for each in reduction_collectives(
            choice.results[0], choice.partial, graph.arrays[result], mesh
        ):
            why = f"{operator.primitive} {operator.index} sums"
            yield (
                result,
                Collective(kind=each.kind, num_bytes=each.num_bytes, axes=each.axes, why=why),
            )
    for path, result in graph.results.items():
        argument = graph.arguments.get(path)
        if argument is not None and argument not in space.tree.states:
            target = number_of(space, argument, chosen)
            yield from _reshard(space, result, target, chosen, (result, f"{path} is stored"))


def _reshard(
    space: Space, array: int, target: int, chosen: Sequence[int], named: tuple[int, str]
) -> Iterator[tuple[int, Collective]]:
    layouts, (made, why) = space.layouts.of(space.graph.arrays[array]), named
    source = number_of(space, array, chosen)
    words = f"{why}: {stored_as(space, array, chosen)}->{layouts.shardings[target]}"
    for each in layouts.path(source, target):
        yield made, Collective(kind=each.kind, num_bytes=each.num_bytes, axes=each.axes, why=words)
