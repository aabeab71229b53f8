"""One search for a plan: generators yield plans, a loop values them and keeps the best.

::

    task ──► generator ──► plan ──fits? kept what is fixed?──► objective ──► the best so far
                 ▲                                                               │
                 └───────────────────────────────────────────────────────────────┘

Each generator has its time, and continues from what the ones before it found: even plans by their
closed form, groups of devices, unlike replicas, all schedules, random changes; at last the
alternatives to each choice of the best plan, until none is better. Their values are the reasons for
it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from jaxpipe.errors import PlanError
from jaxpipe.plan import Plan
from jaxpipe.plan.check import MAX_MICROBATCHES
from jaxpipe.search.best import Best, Effort, Generator, Objective, Trial
from jaxpipe.search.generators.alternatives import CHOICES, alternatives
from jaxpipe.search.generators.changes import changes
from jaxpipe.search.generators.even import even
from jaxpipe.search.generators.grouped import grouped
from jaxpipe.search.generators.layouts import layouts
from jaxpipe.search.generators.schedules import made_to_measure, schedules
from jaxpipe.search.generators.unlike import unlike
from jaxpipe.search.task import Task

DEFAULT: tuple[tuple[Generator, float], ...] = (
    (even, 0.7),
    (grouped, 0.75),
    (unlike, 0.8),
    (layouts, 0.84),
    (schedules, 0.88),
    (alternatives, 0.92),
    (changes, 0.97),
    (made_to_measure, 0.98),
    (alternatives, 1.0),
)
"""The generators, each with the fraction of the seconds at which it ends."""
_MOST_SHAPES = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An alternative for one choice of a plan, with the best trial of it.

    `choice` is, for example, "schedule", `name` "zb-h1". The value of the trial is infinite if the
    plan does not fit into memory.
    """

    choice: str
    name: str
    trial: Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The best plan, its value, the devices that it leaves out, and how many plans were valued.

    `candidates` are the alternatives to each choice of the plan, the plan's own among them.
    """

    plan: Plan
    value: float
    num_valued: int
    left_out: tuple[int, ...]
    candidates: tuple[Candidate, ...]

    def of_choice(self, choice: str) -> tuple[Candidate, ...]:
        """Return the candidates of one choice, best first; those that do not fit come last."""
        own = (each for each in self.candidates if each.choice == choice)
        return tuple(sorted(own, key=lambda each: (each.trial.value, each.trial.lacking)))


def search(
    task: Task,
    objective: Objective,
    *,
    bound: Objective = lambda _: 0.0,
    generators: Sequence[tuple[Generator, float]] = DEFAULT,
    effort: Effort | None = None,
    clock: Callable[[], float] = time.perf_counter,
    observe: Callable[[int], None] = lambda _: None,
) -> Found:
    """Return the plan of least value that is found, within memory and with all that is fixed.

    No plan has a value below its `bound`, which takes far less time: random changes whose bound is
    no better than the best value are not valued. `observe` is called with the number of plans
    valued so far.

    Raises:
        PlanError: no plan fits the devices, the layers, the batch and the memory.
    """
    effort = effort or Effort()
    best = Best(task, objective, effort, bound=bound, clock=clock, observe=observe)
    for generator, until in generators:
        for plan in generator(task, best):
            if best.plan is not None and best.spent() > until:
                break
            best.offer(plan)
    if best.plan is None:
        raise _nothing_fits(task, best)
    return Found(
        plan=best.plan,
        value=best.value,
        num_valued=best.num_valued,
        left_out=left_out(best.plan, len(task.cluster)),
        candidates=tuple(_candidates(task, best, best.plan)),
    )


def left_out(plan: Plan, num_devices: int) -> tuple[int, ...]:
    """Return the devices of a cluster that a plan does not use."""
    used = {device for group in plan.groups for device in group}
    return tuple(device for device in range(num_devices) if device not in used)


def _candidates(task: Task, best: Best, plan: Plan) -> Iterator[Candidate]:
    """Yield what was valued of the shapes, of the tensor degrees, and of the alternatives."""
    shapes = sorted(best.by_shape.items(), key=lambda item: (item[1].value, item[1].lacking))
    trials = [("shape", name, trial) for name, trial in shapes[:_MOST_SHAPES]]
    if plan.has_groups:
        trials += [
            ("tensor", str(degree), trial) for degree, trial in sorted(_by_degree(best).items())
        ]
    trials += [
        (choice, name, best.trials[other])
        for choice, others in CHOICES.items()
        for name, other in others(task, plan)
        if other in best.trials  # a search that was cut short has not valued all of them
    ]
    for choice, name, trial in trials:
        if trial.is_answer:
            yield Candidate(choice=choice, name=name, trial=trial)


def _by_degree(best: Best) -> dict[int, Trial]:
    """Return the best trial of each size of the largest rank."""
    found: dict[int, Trial] = {}
    for trial in best.trials.values():
        degree = max(max(pipeline.degrees) for pipeline in trial.plan.pipelines)
        if degree not in found or trial.value < found[degree].value:
            found[degree] = trial
    return found


def _nothing_fits(task: Task, best: Best) -> PlanError:
    nearest = min((trial.lacking for trial in best.trials.values() if trial.lacking), default=0)
    lacking = f"; the nearest plan lacks {nearest / 2**20:,.0f} MiB on a device" if nearest else ""
    fixed = [name for name in task.fixed.__slots__ if getattr(task.fixed, name) is not None]
    names = ", ".join(f"`plan.{name}`" for name in fixed if name != "num_ranks")
    lead = f"{names} as set" if names else f"`plan.cluster` ({task.cluster.name!r})"
    fix = (
        "use larger devices, a smaller model, or rematerialisation"
        if nearest
        else "leave one of them free, or change `train.batch`"
    )
    if not nearest and task.batch > MAX_MICROBATCHES:
        lacking = f"; a step of a replica has at most {MAX_MICROBATCHES:,} microbatches"
        fix = "change `train.batch`, or set `plan.microbatch`"
    return PlanError(
        f"{lead}: no plan fits {task.num_layers} layers, `train.batch` {task.batch}, on "
        f"{len(task.devices)} devices of cluster {task.cluster.name!r}{lacking}; {fix}"
    )
