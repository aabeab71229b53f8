"""What `jaxpipe plan` prints of a proposal: lines for people, or one JSON object."""

from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpipe.cli.plan_codecs import codec_json, codec_lines
from jaxpipe.propose.options import Goal, OuterQuestion, SearchOptions

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from collections.abc import Iterable

    from jaxpipe.config import Config
    from jaxpipe.plan import Plan
    from jaxpipe.propose.outer_advice import OuterAdvice
    from jaxpipe.propose.proposal import Proposal
    from jaxpipe.propose.worth import Worth
    from jaxpipe.topo import Cluster

_FEW_RANKS = 16
"""Up to this many ranks are drawn one by one."""
_MUCH_TRAFFIC = 0.05
"""Of a step: from here on smaller messages are worth a second search."""


def plan_lines(config: "Config", options: SearchOptions, proposal: "Proposal") -> list[str]:
    """Return the drawing of a plan, the parts of its step, and what it is compared with."""
    from jaxpipe.config import epochs_line
    from jaxpipe.propose.conditions import codecs_of
    from jaxpipe.propose.reasons import reason_lines

    plan, split = proposal.plan, proposal.split
    # An update takes no time if it was not measured.
    parts = {n: s for n, s in split.seconds_by_cause.items() if s or n != "update"}
    step_s, mean = proposal.step_s, ""
    if config.outer.is_on:
        parts["outer steps"], mean = proposal.outer_s, " on average"
    reasons = reason_lines(proposal.reasons)
    return [
        *proposal.notices,
        *drawn(config, plan, proposal.cluster),
        "",
        f"a step takes {step_s:.4g} s{mean} (simulated)",
        *filter(None, (epochs_line(config),)),
        *(f"  {n:<14}{s:10.4g} s {s / step_s:7.1%}" for n, s in parts.items()),
        *_bound(proposal),
        *_less_traffic(config, options, proposal),
        *_front(options, proposal),
        "",
        *((*reasons, "") if reasons else ()),
        *_elsewhere(proposal),
        "",
        *_outer_lines(options, proposal),
        *codec_lines(config.plan.codecs, proposal.codecs, configured=codecs_of(config)),
        *_left_out(config, options, proposal),
        *_assumed(proposal),
        f"{proposal.num_valued} plans simulated",
    ]


def drawn(config: "Config", plan: "Plan", cluster: "Cluster") -> list[str]:
    """Return the drawing of a plan; of many ranks a summary."""
    from jaxpipe.plan import draw_plan
    from jaxpipe.propose.conditions import counted_profile

    if plan.num_ranks > _FEW_RANKS:
        return _summary(plan, cluster)
    profile = counted_profile(config, plan.remat)
    return draw_plan(plan, cluster, profile=profile, has_bubble=False).splitlines()


def _elsewhere(proposal: "Proposal") -> list[str]:
    """Return what the plan takes on devices in their order and at random, and DT-FM's cost."""
    step_s, random_s = proposal.step_s, proposal.random_s
    identity, chance = proposal.identity_s / step_s, proposal.random_median_s / step_s
    lines = [
        "the same plan with other placements (simulated)",
        f"  {'as listed':<14}{proposal.identity_s:10.4g} s {identity:7.2f}x",
        f"  {'random':<14}{proposal.random_median_s:10.4g} s {chance:7.2f}x   median of "
        f"{len(random_s)}, {min(random_s):.4g} to {max(random_s):.4g} s",
    ]
    if proposal.dtfm_s is not None:
        lines.append(f"DT-FM's published cost of this placement: {proposal.dtfm_s:.4f}")
    return lines


def _bound(proposal: "Proposal") -> list[str]:
    """Return the line about the bound that is proved, and how far the plan is from it."""
    bound, step_s = proposal.bound, proposal.step_s
    by = "compute" if bound.compute_s >= bound.cut_s else "the narrowest cut"
    line = f"no plan for these devices takes less than {bound.seconds:.4g} s, by {by}"
    return [f"{line}: at most {step_s / bound.seconds - 1:.0%} to gain"] if bound.seconds else []


def _less_traffic(config: "Config", options: SearchOptions, proposal: "Proposal") -> list[str]:
    """Return the line about smaller messages, where a plan waits for them and none are set."""
    from jaxpipe.collective import CodecLimit

    split, plan = proposal.split, config.plan
    share = (split.activations_s + split.gradients_s) / proposal.step_s
    has_less = plan.codecs is not CodecLimit.NONE or plan.boundaries or config.outer.is_on
    if options.objective is not Goal.TIME or has_less or share < _MUCH_TRAFFIC:
        return []
    return [
        f"it waits for messages for {share:.0%} of this: `--objective loss` also tries smaller and "
        "rarer ones (codecs, boundaries of low rank, islands), by the time to a loss"
    ]


def _front(options: SearchOptions, proposal: "Proposal") -> list[str]:
    """Return what a step costs in dollars and energy, and the plans that trade them for seconds."""
    million = proposal.tokens / 1e6
    lines = []
    if proposal.dollars is not None:
        lines.append(
            f"a step costs {proposal.dollars:.4g} dollars, a million tokens "
            f"{proposal.dollars / million:.4g} (simulated)"
        )
    if proposal.watt_hours is not None and options.has_front:
        lines.append(
            f"a step takes {proposal.watt_hours:.4g} watt-hours, a million tokens "
            f"{proposal.watt_hours / million:.4g} (simulated, at the devices' thermal design power)"
        )
    if not proposal.front:
        return lines
    names = [name for name, value in _others(proposal.front[0]) if value is not None]
    rows = [
        f"  {split.seconds:10.4g} s"
        + "".join(f" {v:12.4g} {name}" for name, v in _others(split) if v is not None)
        + f"   {split.plan.shape}, {sum(map(len, split.plan.groups))} devices"
        for split in proposal.front
    ]
    heading = f"plans that no other beats in {' and '.join(['seconds', *names])} (simulated)"
    return [*lines, "", heading, *rows]


def _others(worth: "Worth") -> "tuple[tuple[str, float | None], ...]":
    """Return the names and values of all but seconds."""
    return ("dollars", worth.dollars), ("watt-hours", worth.watt_hours)


def _summary(plan: "Plan", cluster: "Cluster") -> list[str]:
    from jaxpipe.plan.draw_plan import draw_tree

    devices = cluster.devices
    warmups = [" ".join(map(str, pipeline.warmup or ())) for pipeline in plan.pipelines]
    warmup = f", warm-up {_each(warmups)}" if any(warmups) else ""
    counts = (
        f"{pipeline.microbatch}, {pipeline.num_microbatches} of them" for pipeline in plan.pipelines
    )
    rows = (
        ", ".join(
            f"{region} x{len(list(members))}"
            # Consecutive devices only: a pipeline that returns to a region shows it twice.
            for region, members in groupby(devices[device].region for device in row)
        )
        for row in plan.placement
    )
    # Equal replicas that follow each other share a line.
    lines: list[str] = []
    for row, equal in groupby(enumerate(rows), itemgetter(1)):
        numbers = [number for number, _ in equal]
        name = "-".join(map(str, dict.fromkeys((numbers[0], numbers[-1]))))
        lines.append(f"replica {name:<7} {row}{' each' if len(numbers) > 1 else ''}")
    return [
        f"{plan.shape} on {sum(map(len, plan.groups))} of the {len(devices)} devices of "
        f"{cluster.name}",
        "",
        *lines,
        "",
        f"layers      {_each(' '.join(map(str, pipeline.cut)) for pipeline in plan.pipelines)}",
        f"schedule    {plan.schedule_name}{warmup}",
        f"microbatch  {_each(counts)}",
        f"gradients   {plan.all_reduce}, of the first layer along {draw_tree(plan.sync[0])}",
    ]


def _each(texts: "Iterable[str]") -> str:
    """Return what all replicas have, or what each of them has."""
    shown = list(texts)
    return shown[0] if len(set(shown)) == 1 else " | ".join(shown)


def _outer_lines(options: SearchOptions, proposal: "Proposal") -> list[str]:
    from jaxpipe.propose.outer_advice import advice_lines

    if options.outer is OuterQuestion.NONE:
        return []
    return [*advice_lines(proposal.advice, batch=proposal.plan.batch), ""]


def _left_out(config: "Config", options: SearchOptions, proposal: "Proposal") -> list[str]:
    """Return the line about devices without a rank, with the reason found by the search."""
    names = [proposal.cluster.devices[device].name for device in proposal.left_out]
    if not names:
        return ["all devices are used"]
    shown = _few(names)
    if options.has_front:
        worth = "dollars" if options.counts_dollars else "watt-hours"
        reason = f"no plan found with more of them is worth its {worth}"
    elif proposal.larger is None:
        reason = (
            f"no larger plan divides batch {config.train.batch}, has a layer for each stage and "
            "fits into memory, or none was among the most promising"
        )
    else:
        shape, seconds = proposal.larger
        reason = f"the best plan found with more of them, {shape}, takes {seconds:.4g} s"
    return [f"{len(names)} devices are not used ({shown}): {reason}"]


def _assumed(proposal: "Proposal") -> list[str]:
    """Return what the plan assumes: precision, unchecked memory, unknown NICs and trunks."""
    lines = [f"speeds are those of matrix products in {_PRODUCTS[proposal.precision.value]}"]
    names = [proposal.cluster.devices[device].name for device in proposal.unchecked]
    if names:
        lines.append(
            f"memory was not checked on {len(names)} devices of unknown memory ({_few(names)}): "
            "add `memory_gib` or `gpu` to their hosts"
        )
    if (open_ := proposal.unlimited) is not None:
        lines.append(
            f"the cluster file has no `nic_gbps`: {open_.host} sends gradients to "
            f"{open_.num_peers} devices at once, {open_.bytes_per_s * 8e-9:.3g} Gbit/s in all; "
            "state it if the NIC is slower"
        )
    if proposal.unshared is not None:
        lines.append(proposal.unshared.line)
    return lines


_PRODUCTS = {
    "fp32": "float32",
    "tf32": "TF32, in float32 on GPUs without it (`run.matmul_precision`)",
    "fp16": "float16",
    "bf16": "bfloat16",
}


def _few(names: list[str]) -> str:
    return ", ".join(names[:4]) + (" ..." if len(names) > 4 else "")


def plan_json(
    config: "Config", options: SearchOptions, proposal: "Proposal", out: Path
) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    plan, split = proposal.plan, proposal.split
    return {
        "truth": "simulated",
        "cluster": proposal.cluster.name,
        "batch": config.train.batch,
        "objective": options.objective.value,
        "seed": options.seed,
        "seconds": proposal.step_s,
        "breakdown": split.seconds_by_cause,
        "outer_seconds": proposal.outer_s,
        "identity_seconds": proposal.identity_s,
        "random_seconds": proposal.random_s,
        "dtfm_cost": proposal.dtfm_s,
        **_outer_json(proposal.advice),
        **codec_json(proposal.codecs),
        "bound_seconds": proposal.bound.seconds,
        "tokens": proposal.tokens,
        "dollars": proposal.dollars,
        "watt_hours": proposal.watt_hours,
        "front": [
            {
                "seconds": split.seconds,
                "dollars": split.dollars,
                "watt_hours": split.watt_hours,
                "shape": split.plan.shape,
            }
            for split in proposal.front
        ],
        "stages": _value(plan, "num_stages"),
        "replicas": plan.num_replicas,
        "cut": _value(plan, "cut"),
        "schedule": plan.schedule_name,
        "warmup": _value(plan, "warmup"),
        "all_reduce": plan.all_reduce.value,
        "remat": None if plan.remat is None else plan.remat.value,
        "chunks": plan.num_chunks,
        "microbatch": _value(plan, "microbatch"),
        "num_microbatches": _value(plan, "num_microbatches"),
        "placement": [pipeline.groups for pipeline in plan.pipelines]
        if plan.has_groups
        else plan.placement,
        "left_out": [proposal.cluster.devices[device].name for device in proposal.left_out],
        "precision": proposal.precision.value,
        "memory_unchecked": [
            proposal.cluster.devices[device].name for device in proposal.unchecked
        ],
        "unshared_links": None if proposal.unshared is None else asdict(proposal.unshared),
        "plans_simulated": proposal.num_valued,
        "alternatives": [
            {"choice": reason.choice, "name": reason.name, "seconds": reason.step_s}
            for reason in proposal.reasons
        ],
        "plan_file": str(out),
    }


def _outer_json(advice: "OuterAdvice | None") -> dict[str, Any]:
    if advice is None:
        return {}
    return {
        "outer": {
            "choices": [
                {
                    "islands": 0 if choice.outer is None else choice.outer.islands,
                    "every": 1 if choice.outer is None else choice.outer.every,
                    "delay": 0 if choice.outer is None else choice.outer.delay,
                    "codec": choice.codec.value,
                    "seconds": choice.step_s,
                    "compute_factor": choice.compute_factor,
                    "equal_loss_seconds": choice.equal_loss_s,
                    "published_sizes": choice.is_published,
                }
                for choice in advice.choices
            ],
            "wins_up_to_batch": advice.batch,
            "wins_up_to_bandwidth": advice.bandwidth,
        }
    }


def _value(plan: "Plan", name: str) -> Any:
    """Return the value that all replicas have, or a list with that of each."""
    values = [getattr(pipeline, name) for pipeline in plan.pipelines]
    return values[0] if all(value == values[0] for value in values) else values
