"""The query of a search: a configuration on a cluster, its task, and what it can execute."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import inf, isfinite
from typing import Protocol, TypeAlias, TypeVar

from jaxpipe.collective import NO_CODECS, AllReduceKind, CodecKind, Codecs
from jaxpipe.config import Config, check_plan_fits
from jaxpipe.errors import PlanError, UserError
from jaxpipe.plan import Plan
from jaxpipe.plan.check import MAX_MICROBATCHES
from jaxpipe.plan.cost import LowerBound, lower_bound
from jaxpipe.plan.default import devices_of
from jaxpipe.propose.conditions import bytes_of, costs_of
from jaxpipe.propose.decided_plan import decided_plan
from jaxpipe.propose.reasons import Reason
from jaxpipe.schedule import Remat, ScheduleKind
from jaxpipe.search import DEFAULT, Best, Fixed, Found, Generator, Objective, Task
from jaxpipe.simulate import Conditions
from jaxpipe.topo import Cluster

SIMULATED_CHUNK_BYTES = 4 * 2**20
"""Chunk of gradients in simulations: larger than the runtime's, so that there are fewer events."""
_MICROBATCHES = (1, 2, 4, 8, 16)

Generators: TypeAlias = tuple[tuple[Generator, float], ...]
"""Generators of plans, each with the fraction of the seconds at which it ends."""


class _HasReasons(Protocol):
    @property
    def reasons(self) -> tuple[Reason, ...]: ...


_Found = TypeVar("_Found", bound=_HasReasons)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A configuration whose plan is searched for a cluster."""

    config: Config
    cluster: Cluster
    num_ranks: int | None = None

    @property
    def remats(self) -> tuple[Remat, ...]:
        """The rematerialisations to try, the least work first: all, where memory may bind."""
        if self.config.train.remat is not None:
            return (self.config.train.remat,)
        if self.config.paced.profile is not None or self.config.paced.profile_of:
            return (Remat.NONE,)  # a profile is of one
        has_limits = any(device.memory_bytes for device in self.cluster.devices)
        return tuple(Remat) if has_limits else (Remat.NONE,)

    @property
    def is_described(self) -> bool:
        """Whether the section describes replicas, or the programs of ranks, one by one."""
        plan = self.config.plan
        return plan.has_unlike_replicas or plan.schedule_file is not None

    @property
    def fixed(self) -> Fixed:
        """The fields of the section that are set."""
        plan, compresses = self.config.plan, self.config.comm.gradients is not CodecKind.NONE
        if self.is_described:
            return Fixed(num_ranks=self.num_ranks)
        return Fixed(
            num_ranks=self.num_ranks,
            stages=plan.num_stages,
            replicas=plan.replicas,
            microbatch=plan.microbatch,
            # Stages of one rank exchange nothing: their boundaries have no codecs of their own.
            chunks=plan.chunks if plan.boundaries is None else 1,
            cut=plan.cut,
            schedule=plan.schedule,
            warmup=plan.warmup,
            # The only one with far messages, which a codec compresses.
            all_reduce=AllReduceKind.HIERARCHICAL if compresses else plan.all_reduce,
            devices=devices_of(plan, self.cluster) if plan.devices else None,
        )

    def of_remats(self, find: Callable[[Remat], _Found]) -> tuple[_Found, ...]:
        """Return what is found with each rematerialisation, until memory does not bind.

        Raises:
            PlanError: nothing is found with any, or what is set fits no plan.
        """
        self._check_library()
        results: list[_Found] = []
        refusals: list[PlanError] = []
        for remat in self.remats:
            try:
                results.append(find(remat))
            except PlanError as error:
                refusals.append(error)
                continue
            if all(reason.step_s is not None for reason in results[-1].reasons):
                break  # everything fits: to keep less of a forward gains nothing
        if not results:
            self._check_given()  # its refusal names the field, where memory is not the reason
            raise refusals[0]
        return tuple(results)

    def _check_library(self) -> None:
        """Check that messages of the all-reduce are known, which a search simulates."""
        kind = self.config.plan.all_reduce
        if kind is not None and kind.facts.is_native:
            raise PlanError(
                f"`plan.all_reduce` ({kind}) cannot be searched for, since the messages of a "
                "library are not known: set `plan.stages`, `plan.replicas`, `plan.microbatch` and "
                f"`plan.schedule` as well, or choose another one, such as "
                f"{AllReduceKind.HIERARCHICAL}"
            )

    def _check_given(self) -> None:
        """Check that what is set fits a plan, whatever the memory, in which the rest is the least.

        Raises:
            PlanError: it does not.
        """
        given = self.config.plan
        stages = given.num_stages or (1 if given.cut is None else len(given.cut))
        shape = {} if given.has_shape else {"stages": stages, "replicas": given.replicas or 1}
        # The most microbatches that a step may have, or all samples as one.
        batch = self.config.train.batch
        microbatch = 1 if batch <= MAX_MICROBATCHES else batch // (given.replicas or 1)
        schedule = given.schedule or ScheduleKind.ONE_F_ONE_B
        section = replace(
            given,
            **shape,
            microbatch=given.microbatch or microbatch,
            schedule=schedule if given.schedule_file is None else None,
        )
        decided_plan(replace(self.config, plan=section), self.cluster)

    def task(self, remat: Remat, *, max_tensor: int = 1) -> tuple[Task, Conditions]:
        """Return the task of a search with a rematerialisation, and its conditions.

        Raises:
            ConfigError: the speed of a device is unknown.
        """
        config = self.config
        conditions, precision = costs_of(
            config, self.cluster, remat=remat, chunk_bytes=SIMULATED_CHUNK_BYTES
        )
        task = Task(
            cluster=conditions.cluster,
            profile=conditions.profile,
            batch=config.train.batch,
            tied=config.model.tied,
            precision=precision,
            bytes_each=bytes_of(config),
            chunk_bytes=SIMULATED_CHUNK_BYTES,
            num_heads=config.model.num_heads,
            max_tensor=max_tensor,
            recomputes=conditions.recomputes,
            fixed=self.fixed,
        )
        return task, conditions


def with_boundaries(config: Config, plan: Plan) -> Plan:
    """Return a plan with the codecs that the section states for its boundaries, if it does."""
    codecs = config.plan.boundaries
    return plan if codecs is None else plan.of_each(codecs=codecs)


def executable(config: Config, objective: Objective) -> Objective:
    """Return the objective that is infinite for plans which the configuration cannot execute.

    Plans are valued with the codecs that the section states for their boundaries.
    """
    verdicts: dict[tuple[object, ...], bool] = {}

    def value(plan: Plan) -> float:
        shapes = tuple(pipeline.shape for pipeline in plan.pipelines)
        kind = (plan.schedule, plan.num_chunks, plan.all_reduce, shapes)
        if kind not in verdicts:
            try:
                check_plan_fits(config, plan)
                verdicts[kind] = True
            except UserError:
                verdicts[kind] = False
        return objective(with_boundaries(config, plan)) if verdicts[kind] else inf

    return value


def bound_of(task: Task, conditions: Conditions, codecs: Codecs = NO_CODECS) -> LowerBound:
    """Return the bound of every plan for the devices whose messages have at least these bytes."""
    ratio = codecs.boundary_ratio(conditions.activation_value_bytes)
    # Islands of an outer loop sum gradients seldom, and none of them between each other.
    sums = conditions.outer is None
    gradient_bytes, profile = task.bytes_each.gradient, task.profile
    return lower_bound(
        task.cluster,
        replace(
            profile,
            activation_bytes=profile.activation_bytes * ratio,
            narrow_bytes={after: n * ratio for after, n in profile.narrow_bytes.items()},
        ),
        slow=task.slow,
        batch=task.batch,
        gradient_bytes=gradient_bytes * codecs.far_ratio(gradient_bytes) if sums else 0.0,
        local_factor=conditions.overheads.local_factor,
    )


def generators_of(query: Query) -> Generators:
    """Return the generators of a search; of replicas that are described, they list all plans."""
    if not query.is_described:
        return DEFAULT

    def listed(_task: Task, _best: Best) -> Iterator[Plan]:
        return _described_plans(query)

    return ((listed, 1.0),)


def _described_plans(query: Query) -> Iterator[Plan]:
    """Yield the plans of all schedules and microbatches that a described section leaves free.

    Raises:
        PlanError: none of them fits the batch and the devices.
    """
    section = query.config.plan
    kinds: tuple[ScheduleKind | None, ...] = (section.schedule,)
    if section.schedule is None and section.schedule_file is None:
        kinds = tuple(k for k in ScheduleKind if k.facts.is_searched and not k.facts.takes_chunks)
    sizes = _MICROBATCHES if section.microbatch is None else (section.microbatch,)
    refusal: PlanError | None = None
    has_plan = False
    for kind, size in product(kinds, sizes):
        config = replace(query.config, plan=replace(section, schedule=kind, microbatch=size))
        try:
            plan = decided_plan(config, query.cluster)
        except PlanError as error:
            refusal = refusal or error
            continue
        has_plan = True
        yield plan
    if not has_plan and refusal is not None:
        raise refusal


def reasons_of(found: Found) -> tuple[Reason, ...]:
    """Return the alternatives of each choice that a search has valued."""
    return tuple(
        Reason(
            choice=candidate.choice,
            name=candidate.name,
            step_s=candidate.trial.value if isfinite(candidate.trial.value) else None,
        )
        for candidate in found.candidates
    )
