"""The strategy of a traced step that splits what a found strategy splits.

A decision splits one label of an operator, or none. The equations of the operator, of its forward
and of its backward, split the dims of that label; equations without such a dim, or of no operator,
follow their operands (`jaxpipe.baselines.autoshard.spmd.propagate`)::

    layer1.up  S0,S0->S0      ebcd,edf->ebcf   splits e     rows, kernel -> hidden
                              backward         splits e     hidden', kernel -> rows'
                                                            rows, hidden' -> kernel'

Parameters are stored as the strategy says, and the optimizer's state like them. The batch is split
by examples. The order of collectives is left to what runs the step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import jax

from jaxpipe.baselines.autoshard.duplex.decision import OperatorDecision, Placement
from jaxpipe.baselines.autoshard.duplex.labelled_graph import LabelledGraph
from jaxpipe.baselines.autoshard.duplex_step.dim_classes import Dim, DimClasses, factor_dims
from jaxpipe.baselines.autoshard.duplex_step.operator_names import ModelNames
from jaxpipe.baselines.autoshard.graph import path_name
from jaxpipe.baselines.autoshard.spmd.program import OperatorProgram, ProgramOperator, trace_program
from jaxpipe.baselines.autoshard.spmd.propagate import JOINABLE, propagate
from jaxpipe.baselines.autoshard.spmd.sharded_step import NamedStep
from jaxpipe.baselines.autoshard.strategy import (
    Axes,
    Axis,
    MeshShape,
    OperatorChoice,
    Sharding,
    Strategy,
    ZeroLevel,
    replicated,
    split_along,
)
from jaxpipe.errors import PlanError

_BATCH: Final = "b"


def realized(
    step: NamedStep,
    arguments: Sequence[Any],
    *,
    graph: LabelledGraph,
    decisions: Sequence[OperatorDecision],
    names: ModelNames,
    num_devices: int,
) -> Strategy:
    """Return the strategy of a step, given the shapes of its arguments.

    Raises:
        PlanError: a parameter has another number of dims than labels, or does not divide.
    """
    mesh = MeshShape(dp=num_devices, op=1)
    shapes = {
        path: tuple(leaf.shape) for path, leaf in _leaves_by_path(step.names, arguments).items()
    }
    by_name = {
        operator.name: decision
        for operator, decision in zip(graph.operators, decisions, strict=True)
    }
    stored = {path: _stored(path, shape, by_name, names, mesh) for path, shape in shapes.items()}
    program = trace_program(step.run, *step.of_one_microbatch(arguments))
    numbers = dict(zip(shapes, program.arguments, strict=True))
    outputs = _leaves_by_path(step.result_names, step.results(arguments))
    # A result that is no argument is the loss: all devices have it.
    results = {path: stored.get(path, replicated(0)) for path in outputs}
    is_gathered = any(placement.stored != placement.used for placement in _placements(decisions))
    choices = propagate(
        program,
        mesh,
        arguments={number: stored[path] for path, number in numbers.items()},
        results=dict(zip(program.results, results.values(), strict=True)),
        given={},
        scatter=is_gathered,
        split=_splits(program, _Labels.of(program, numbers, names), by_name, names, num_devices),
    )
    return Strategy(
        name=f"duplex search, {num_devices} devices",
        mesh=mesh,
        arguments=stored,
        results=results,
        operators=_by_index(program, choices),
        zero=ZeroLevel.PARAMETERS if is_gathered else ZeroLevel.NONE,
    )


def _placements(decisions: Iterable[OperatorDecision]) -> Iterator[Placement]:
    for decision in decisions:
        yield from decision.placements


def _by_index(
    program: OperatorProgram, choices: Iterable[OperatorChoice]
) -> dict[int, OperatorChoice]:
    """Return the choices of the operators that stand for an equation of the step."""
    return {
        operator.index: choice
        for operator, choice in zip(program.operators, choices, strict=True)
        if operator.index is not None
    }


def _leaves_by_path(names: Sequence[str], trees: Iterable[Any]) -> dict[str, Any]:
    """Return the leaves of named trees, by the names of their paths, in order."""
    return {
        path_name(name, keys): leaf
        for name, tree in zip(names, trees, strict=True)
        for keys, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _stored(
    path: str,
    shape: tuple[int, ...],
    decisions: Mapping[str, OperatorDecision],
    names: ModelNames,
    mesh: MeshShape,
) -> Sharding:
    """Return how the devices store an argument."""
    if path.split(".", maxsplit=1)[0] in names.batch:
        return split_along(len(shape), 0, (Axis.DP,))
    known = names.parameter(path)
    if known is None:
        return replicated(len(shape))
    if len(known.labels) != len(shape):
        raise PlanError(
            f"`{path}`, of shape {shape}, must have a label for each dim, has {known.labels!r}; "
            "correct its `ParameterLabels`"
        )
    # A bias has the label of its operator's kernel, and is stored as that is.
    for placement in decisions[known.operator].placements:
        label = placement.labels[placement.stored.dim] if placement.stored.dim >= 0 else ""
        if label and label in known.labels:
            sharding = split_along(len(shape), known.labels.index(label), (Axis.DP,))
            if not sharding.fits(shape, mesh):
                raise PlanError(
                    f"`{path}` is {shape}: its dim {label!r} does not divide over "
                    f"{mesh.num_devices} devices; search again for this model"
                )
            return sharding
    return replicated(len(shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Labels:
    """The classes of the labels of operators, or of all operators of a layer."""

    classes: DimClasses
    batch: Dim
    known: Mapping[tuple[str, str], Dim] = field(default_factory=dict)

    @classmethod
    def of(
        cls, program: OperatorProgram, numbers: Mapping[str, int], names: ModelNames
    ) -> "_Labels":
        classes, known = DimClasses.of(program), {}
        for path, number in numbers.items():
            parameter = names.parameter(path)
            for dim, label in enumerate("" if parameter is None else parameter.labels):
                assert parameter is not None
                for name in (parameter.operator, _layer(parameter.operator)):
                    known.setdefault((name, label), classes.name((number, dim)))
        first = next(numbers[path] for path in numbers if path.split(".")[0] in names.batch)
        return cls(classes=classes, batch=classes.name((first, 0)), known=known)

    def dim(self, operator: str, label: str) -> Dim | None:
        """Return the class of a label; None if no parameter of its layer has it."""
        if label == _BATCH:
            return self.batch
        places = (operator, label), (_layer(operator), label)
        return next(
            (self.known[place_name] for place_name in places if place_name in self.known), None
        )


def _layer(operator: str) -> str:
    return operator.rpartition(".")[0]


def _splits(
    program: OperatorProgram,
    labels: _Labels,
    decisions: Mapping[str, OperatorDecision],
    names: ModelNames,
    num_devices: int,
) -> dict[int, Mapping[int, Axes]]:
    """Return the factors that equations split, where a decision says so."""
    owners: dict[str, str | None] = {}
    splits: dict[int, Mapping[int, Axes]] = {}
    for operator in program.operators:
        if operator.index is None:
            continue
        if operator.scope not in owners:
            owners[operator.scope] = names.operator(operator.scope)
        owner = owners[operator.scope]
        if owner is None:
            continue
        label = decisions[owner].signature.label
        if not label:
            splits[operator.index] = {}
            continue
        wanted = labels.dim(owner, label)
        for factor in _factors(operator, labels.classes, wanted, num_devices):
            splits[operator.index] = {factor: (Axis.DP,)}
            break
    return splits


def _factors(
    operator: ProgramOperator, classes: DimClasses, wanted: Dim | None, num_devices: int
) -> Iterator[int]:
    """Yield the factors of a class that divide, and may be split."""
    summed = operator.rule.summed if operator.name not in JOINABLE else ()
    for factor, dims in factor_dims(operator).items():
        divides = operator.rule.sizes[factor] % num_devices == 0
        if classes.name(dims[0]) == wanted and divides and factor not in summed:
            yield factor
