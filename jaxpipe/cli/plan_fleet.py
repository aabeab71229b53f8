"""What `jaxpipe plan` prints of a plan for thousands of devices."""

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # this imports numpy, which `--help` can do without
    from jaxpipe.config import Config
    from jaxpipe.propose.fleet_proposal import FleetProposal
    from jaxpipe.propose.options import SearchOptions

_FEW = 12


def fleet_lines(proposal: "FleetProposal") -> list[str]:
    """Return the lines about a plan: kinds of replicas, the step by cause, and its bound."""
    plan, step, cluster = proposal.plan, proposal.step, proposal.cluster
    kinds = Counter(
        (_gpu(proposal, pipeline.devices[0]), " ".join(map(str, pipeline.cut)))
        for pipeline in plan.pipelines
    )
    regions = Counter(cluster.devices[device].region for row in plan.placement for device in row)
    bound = proposal.bound.seconds
    parts = {"pipelines": step.pipeline_s, "gradients": step.sync_s, "update": step.update_s}
    return [
        f"{plan.num_replicas:,} replicas on {plan.num_ranks:,} of the {len(cluster):,} devices of "
        f"{cluster.name}",
        "",
        *(
            f"{count:>7,} replicas on {gpu}: layers {cut}"
            for (gpu, cut), count in kinds.most_common(_FEW)
        ),
        *([f"{len(kinds) - _FEW:>7,} kinds more"] if len(kinds) > _FEW else []),
        "",
        f"regions     {', '.join(f'{name} x{count}' for name, count in sorted(regions.items()))}",
        f"schedule    {plan.schedule_name}, microbatch {plan.pipelines[0].microbatch}",
        f"gradients   {plan.all_reduce} along hosts inside regions",
        "",
        f"a step takes {step.step_s:.4g} s (closed form, not simulated)",
        *(f"  {n:<14}{s:10.4g} s {s / step.step_s:7.1%}" for n, s in parts.items() if s),
        f"the best plan with equal choices for all devices takes {proposal.coarse_s:.4g} s",
        *(
            [
                f"no plan for these devices takes less than {bound:.4g} s: at most "
                f"{step.step_s / bound - 1:.0%} to gain"
            ]
            if bound
            else []
        ),
        f"{len(proposal.left_out):,} devices are not used: no plan found with more of them is "
        "faster",
        f"{proposal.num_valued:,} plans valued",
    ]


def _gpu(proposal: "FleetProposal", device: int) -> str:
    gpu = proposal.cluster.devices[device].gpu
    return "devices without a `gpu`" if gpu is None else gpu.name


def fleet_json(
    config: "Config", options: "SearchOptions", proposal: "FleetProposal", out: Path
) -> dict[str, Any]:
    """Return the plan as one JSON object; devices are in the plan file."""
    plan, step = proposal.plan, proposal.step
    return {
        "truth": "closed form",
        "cluster": proposal.cluster.name,
        "batch": config.train.batch,
        "objective": options.objective.value,
        "seconds": step.step_s,
        "breakdown": {
            "pipelines": step.pipeline_s,
            "gradients": step.sync_s,
            "update": step.update_s,
        },
        "coarse_seconds": proposal.coarse_s,
        "bound_seconds": proposal.bound.seconds,
        "replicas": plan.num_replicas,
        "ranks": plan.num_ranks,
        "schedule": plan.schedule_name,
        "all_reduce": plan.all_reduce.value,
        "microbatch": plan.pipelines[0].microbatch,
        "left_out": len(proposal.left_out),
        "precision": proposal.precision.value,
        "plans_valued": proposal.num_valued,
        "plan_file": str(out),
    }
