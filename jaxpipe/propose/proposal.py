"""Proposal: the best plan found, the breakdown of its step, and the plans to compare it with."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from jaxpipe import topo
from jaxpipe.baselines.autoshard.inter_op import AlpaPlan, alpa_plan
from jaxpipe.baselines.published.named_layout import named_plan
from jaxpipe.collective import NO_CODECS, CodecLimit, Codecs
from jaxpipe.errors import ConfigError, PlanError
from jaxpipe.models import DTYPE_BYTES, ModelConfig, preset_config
from jaxpipe.plan import Plan, Sharing
from jaxpipe.plan.cost import LowerBound, live_limits, lower_bound, overfull
from jaxpipe.propose.codec_choice import CodecChoice, strongest, suited_to_codecs, with_codecs
from jaxpipe.propose.costed import costed
from jaxpipe.propose.gpt_profile import bytes_each
from jaxpipe.propose.outer_advice import OuterAdvice, outer_advice
from jaxpipe.propose.request import Goal, OuterQuestion, PlanRequest
from jaxpipe.propose.side_by_side import SideBySide, side_by_side
from jaxpipe.propose.trained_part import TrainedPart
from jaxpipe.propose.worth import Appraisal, Worth, worth_of
from jaxpipe.runtime.config import MatmulPrecision, OptimizerName, Remat
from jaxpipe.search import Candidate, Effort, Fixed, Task, dtfm_plan, search, with_suited_trees
from jaxpipe.search.dtfm import dtfm_cost
from jaxpipe.simulate import (
    Conditions,
    Search,
    StepBreakdown,
    auto_schedule,
    plan_step,
    plan_step_s,
    step_breakdown,
    step_objective,
)
from jaxpipe.topo import Cluster, Precision


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A plan and its evaluation; times are simulated seconds of a step.

    `identity_s` and `random_s` are the same plan with devices in their order and at random;
    `larger` is the best plan found with more devices, if some are left out. `alpa` has the stages
    of the objective `alpa`, `advice` the comparison with outer loops, if it was asked for. All
    times are those with the chosen `codecs`, if any were to be chosen. `precision` is that of
    matrix products. `dtfm_s` is None if replicas are unlike. `bound` holds for every plan for these
    devices. A step has `tokens`, and costs `dollars` and `watt_hours`, None without prices or
    powers; of a search that weighs these, `front` has the plans that no other beats. Where the
    cluster file states no NIC, `unlimited` is the host that sends most at once.
    """

    plan: Plan
    cluster: Cluster
    precision: Precision
    split: StepBreakdown
    dtfm_s: float | None
    identity_s: float
    random_s: tuple[float, ...]
    left_out: tuple[int, ...]
    larger: Candidate | None
    num_valued: int
    bound: LowerBound
    dollars: float | None
    watt_hours: float | None
    tokens: int
    front: tuple[Worth, ...] = ()
    alpa: AlpaPlan | None = None
    advice: OuterAdvice | None = None
    codecs: CodecChoice | None = None
    unlimited: SideBySide | None = None

    @property
    def random_median_s(self) -> float:
        """The median over the random placements."""
        return median(self.random_s)

    def cost(self, objective: Goal) -> float:
        """Return what an objective counts: seconds, unless it is dollars or watt-hours."""
        value = {Goal.DOLLARS: self.dollars, Goal.ENERGY: self.watt_hours}.get(objective)
        return self.split.step_s if value is None else value

    @property
    def unchecked(self) -> tuple[int, ...]:
        """The devices of the plan whose memory is unknown: it is not checked that stages fit."""
        devices = self.cluster.devices
        used = sorted(device for group in self.plan.groups for device in group)
        return tuple(device for device in used if devices[device].memory_bytes is None)


NUM_RANDOM = 5
_NUM_AFTERWARDS = NUM_RANDOM + 4
"""Simulations of the best plan after a search: at random, in order, and for its breakdown."""
CHUNK_BYTES = 4 * 2**20
"""Chunk of gradients in simulations: larger than the runtime's, so that there are fewer events."""


def propose(
    request: PlanRequest, *, observe: Callable[[int], None], model: ModelConfig | None = None
) -> Proposal:
    """Return the best plan found; `observe` is called with the number of plans simulated so far.

    `model` is by default the preset that the request names.

    Raises:
        ConfigError: cluster, model or batch is missing or wrong, or the speed of a device is
            unknown.
        PlanError: no plan fits into memory.
    """
    model = model or preset_model(request)
    return propose_for(request, model, *task_and_conditions(request, model), observe=observe)


def propose_for(
    request: PlanRequest,
    model: ModelConfig,
    task: Task,
    conditions: Conditions,
    *,
    observe: Callable[[int], None],
) -> Proposal:
    """Return the best plan found for a task; see `propose`.

    Messages have the codecs of the conditions, unless the request asks to choose others.
    """
    fewest = conditions.codecs
    if request.codecs is not CodecLimit.NONE:
        fewest, conditions = strongest(request.codecs), replace(conditions, codecs=NO_CODECS)
    appraisal = None
    clock = _EndingClock(most_s=request.budget / 2)
    tokens = task.batch * model.sequence
    if request.has_front:
        appraisal = Appraisal(request=request, conditions=conditions, tokens=tokens)
    valued = 0

    def search(request: PlanRequest, conditions: Conditions) -> _Start:
        objective = appraisal or step_objective(conditions, exact=clock.plan_step_s)

        def seconds(plan: Plan) -> float:
            nonlocal valued
            valued += 1
            observe(valued)
            return objective(plan)

        found = _start(request, model, task, conditions, seconds, clock=clock.now)
        if appraisal is not None and request.layout is None:
            appraisal.check_limits(found.plan)
        return found

    def exact_s(plan: Plan) -> float:
        return plan_step_s(plan, conditions)

    choice: CodecChoice | None = None
    if request.codecs is CodecLimit.NONE:
        start = search(request, conditions)
    else:
        start, choice = with_codecs(request, conditions, search, plan_of=lambda each: each.plan)
        conditions = replace(conditions, codecs=choice.codecs)
    plan = suited_to_codecs(start.plan, conditions) if choice is None else choice.plan
    if request.measure and plan.is_even and plan.num_chunks == 1:
        # After the search: a schedule is made for one plan, too slowly to be made for each.
        plan = _made_to_measure(plan, task, conditions)
    used = {device for group in plan.groups for device in group}
    random = np.random.default_rng(request.seed)
    split = step_breakdown(plan, conditions)
    worth = worth_of(plan, conditions, step_s=split.step_s)
    return Proposal(
        plan=plan,
        cluster=task.cluster,
        precision=task.precision,
        split=split,
        bound=_bound(task, conditions, fewest),
        dollars=worth.dollars,
        watt_hours=worth.watt_hours,
        tokens=tokens,
        front=() if appraisal is None else tuple(appraisal.front),
        # Placements below share plan, schedule and partition: they differ in devices alone.
        dtfm_s=_dtfm_cost_s(plan, task.cluster),
        identity_s=exact_s(_placed(task, plan, np.arange(len(task.cluster)))),
        random_s=tuple(
            exact_s(_placed(task, plan, random.permutation(len(task.cluster))))
            for _ in range(NUM_RANDOM)
        ),
        left_out=tuple(device for device in range(len(task.cluster)) if device not in used),
        # By predicted time, best first: the first larger one is the best larger one.
        larger=next((each for each in start.shapes if _num_ranks(each) > plan.num_ranks), None),
        num_valued=valued,
        alpa=start.alpa,
        advice=None if request.outer is OuterQuestion.NONE else outer_advice(plan, conditions),
        codecs=choice,
        unlimited=side_by_side(plan, conditions),
    )


@dataclass(slots=True, kw_only=True)
class _EndingClock:
    """A clock that is ahead by the time for what follows a search: simulations of its best plan.

    Without that, a search of plans that are slow to simulate would exceed its seconds by minutes.
    It is ahead by `most_s` at most, for plans have to be found as well.
    """

    most_s: float
    ahead_s: float = 0.0

    def now(self) -> float:
        """Return the time in seconds, ahead of the real one."""
        return time.perf_counter() + self.ahead_s

    def plan_step_s(self, plan: Plan, conditions: Conditions) -> float:
        """Simulate a whole step, and remember how long that takes."""
        start_s = time.perf_counter()
        step_s = plan_step_s(plan, conditions)
        took_s = time.perf_counter() - start_s
        self.ahead_s = min(self.most_s, max(self.ahead_s, _NUM_AFTERWARDS * took_s))
        return step_s


@dataclass(frozen=True, slots=True, kw_only=True)
class _Start:
    """A plan for named schedules, as searched or as named, and what else its search found."""

    plan: Plan
    shapes: tuple[Candidate, ...] = ()
    alpa: AlpaPlan | None = None


def _start(
    request: PlanRequest,
    model: ModelConfig,
    task: Task,
    conditions: Conditions,
    seconds: Callable[[Plan], float],
    *,
    clock: Callable[[], float],
) -> _Start:
    """Return the plan that the request names, or the best that is found by its objective."""
    if request.layout is not None:
        plan = named_plan(request.layout, task, seed=request.seed)
        _check_heads(plan, model)
        return _Start(plan=plan)
    if request.objective is Goal.DTFM:
        return _Start(plan=dtfm_plan(task, seed=request.seed, seconds=request.budget))
    if request.objective is Goal.ALPA:
        alpa = alpa_plan(task)
        return _Start(plan=alpa.plan, alpa=alpa)
    # The time decides: a million changes are never reached.
    effort = Effort(seconds=request.budget, num_changes=10**6)
    found = search(task, seconds, effort=effort, seed=request.seed, clock=clock)
    plan = found.plan
    if not request.has_front and plan.is_even and not plan.has_groups:
        plan = _as_listed_if_faster(plan, task, conditions)
    return _Start(plan=plan, shapes=found.of_choice("shape"))


def _bound(task: Task, conditions: Conditions, codecs: Codecs) -> LowerBound:
    """Return the bound of every plan for the devices whose messages have at least these bytes."""
    ratio = codecs.boundary_ratio(conditions.activation_value_bytes)
    gradient_bytes = task.bytes_each.gradient
    return lower_bound(
        task.cluster,
        replace(task.profile, activation_bytes=task.profile.activation_bytes * ratio),
        slow=task.slow,
        batch=task.batch,
        gradient_bytes=gradient_bytes * codecs.far_ratio(gradient_bytes),
        local_factor=conditions.overheads.local_factor,
    )


def _as_listed_if_faster(plan: Plan, task: Task, conditions: Conditions) -> Plan:
    """Return the plan on the first devices in their order if that is faster and fits."""
    # With other devices, stages may not fit that fitted before.
    as_listed = _placed(task, plan, np.arange(len(task.cluster)))
    if overfull(as_listed, task.profile, task.cluster, each=task.bytes_each):
        return plan
    return min(plan, as_listed, key=lambda each: plan_step_s(each, conditions))


def _made_to_measure(plan: Plan, task: Task, conditions: Conditions) -> Plan:
    """Return the plan with the fastest schedule found for its ranks, links and memory."""
    search = Search(
        job=plan_step(plan, conditions),
        num_microbatches=plan.num_microbatches,
        max_live=live_limits(plan, task.profile, task.cluster, each=task.bytes_each),
        tied=plan.tied,
    )
    found = auto_schedule(search)
    # A named schedule is stored by its name; one that fits no name as its instructions.
    if found.kind is None:
        better = replace(plan, schedule=found.compute).of_each(warmup=None)
    else:
        better = replace(plan, schedule=found.kind).of_each(warmup=found.warmup)
    # The search may end with a schedule that is no better: plans do not get worse.
    faster = found.step_s < plan_step_s(plan, conditions)
    return better if faster else plan


def task_and_conditions(request: PlanRequest, model: ModelConfig) -> tuple[Task, Conditions]:
    """Return the task of the search, and the conditions of its simulations.

    Raises:
        ConfigError: cluster or batch is missing or wrong, or the speed of a device is unknown.
    """
    known = costed(
        model,
        _cluster(request),
        remat=request.remat or Remat.FULL,
        profile=request.profile,
        tflops=request.tflops,
        matmul_precision=request.matmul_precision or MatmulPrecision.TF32,
        profiles_of=request.profile_of,
    )
    if request.batch is None:
        raise _missing("batch")
    part = TrainedPart(lora=request.lora, frozen=request.frozen)
    task = Task(
        cluster=known.cluster,
        profile=part.profile(known.profile, model),
        batch=request.batch,
        tied=model.tied,
        precision=known.precision,
        bytes_each=part.bytes_each(
            bytes_each(
                model,
                shards_optimizer=request.sharded_optimizer,
                optimizer=request.optimizer or OptimizerName.ADAMW,
            ),
            model,
        ),
        chunk_bytes=CHUNK_BYTES,
        num_heads=model.num_heads,
        max_tensor=request.max_tensor,
        recomputes=(request.remat or Remat.FULL) is Remat.FULL,
        any_size=request.has_front,
        fixed=Fixed(stages=request.stages, replicas=request.replicas),
    )
    return task, Conditions(
        cluster=known.cluster,
        profile=task.profile,
        slow=task.slow,
        gradient_bytes=task.bytes_each.gradient,
        overheads=known.overheads(
            chunk_bytes=CHUNK_BYTES, ideal=request.ideal, keep_warm=not request.cold_connections
        ),
        recomputes=task.recomputes,
        profiles={name: part.profile(each, model) for name, each in known.profiles.items()},
        activation_value_bytes=DTYPE_BYTES[model.compute_dtype],
        gathered_bytes=DTYPE_BYTES[model.param_dtype] if request.sharded_optimizer else 0.0,
    )


def _check_heads(plan: Plan, model: ModelConfig) -> None:
    divides_heads = plan.sharing in (Sharing.TENSOR, Sharing.SEQUENCE)
    parts = {size for pipeline in plan.pipelines for size in pipeline.tensor_parts}
    sizes = parts if divides_heads else set()
    if wrong := [size for size in sorted(sizes) if model.num_heads % size]:
        raise PlanError(
            f"the devices of a rank have equal parts of {model.num_heads} heads: ranks have "
            f"{wrong[0]} devices; choose a layout, or a model, in which the one divides the other"
        )


def _missing(name: str) -> ConfigError:
    return ConfigError(
        f"a plan is for one cluster, model and batch: `--{name}` is missing; give it, or `--config`"
    )


def preset_model(request: PlanRequest) -> ModelConfig:
    """Return the preset that a request names.

    Raises:
        ConfigError: it names none, or there is no such preset.
    """
    if request.model is None:
        raise _missing("model")
    try:
        return preset_config(request.model)
    except ValueError as error:
        raise ConfigError(f"`--model`: {error}") from error


def _cluster(request: PlanRequest) -> Cluster:
    if request.cluster is None:
        raise _missing("cluster")
    try:
        return topo.load(request.cluster)
    except (ValueError, OSError) as error:
        raise ConfigError(f"`--cluster`: {error}") from error


def _placed(task: Task, plan: Plan, devices: np.ndarray) -> Plan:
    """Return the plan on other devices, with sync trees for them; of groups, in another order."""
    order = [int(device) for device in devices]
    alone = [(device,) for device in order]
    # A group stays together: it is on one host.
    groups = [plan.group(rank) for rank in order if rank < plan.num_ranks]
    left = iter(groups if plan.has_groups else alone)
    rows = [[next(left) for _ in row] for row in plan.placement]
    return with_suited_trees(task, plan.on_groups(rows))


def _num_ranks(candidate: Candidate) -> int:
    return 0 if candidate.plan is None or not candidate.fits else candidate.plan.num_ranks


def _dtfm_cost_s(plan: Plan, cluster: Cluster) -> float | None:
    if not plan.is_even:
        return None  # it is one of equal groups
    # DT-FM's groups are stages: the transposed placement.
    groups = np.array(plan.placement).T.tolist()
    return dtfm_cost(cluster.latency_s, cluster.bandwidth_bytes_per_s, groups).total
