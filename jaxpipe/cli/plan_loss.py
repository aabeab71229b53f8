"""What `jaxpipe plan --objective loss` prints: all methods by their time to a loss, and the first.

The rest of the output is the plan of the first: of islands its drawing, of others what every plan
has.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxpipe.cli.plan_codecs import codec_settings
from jaxpipe.cli.plan_text import drawn, plan_json, plan_lines
from jaxpipe.propose.options import SearchOptions

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from jaxpipe.config import Config
    from jaxpipe.propose.loss_proposal import LossProposal, Method


def loss_settings(method: "Method") -> tuple[str, ...]:
    """Return what the configuration needs beside the plan file."""
    codecs = None if method.proposal is None else method.proposal.codecs
    return (*method.settings, *codec_settings(codecs))


def loss_lines(config: "Config", options: SearchOptions, answer: "LossProposal") -> list[str]:
    """Return the table of all methods, and the plan of the first."""
    best = answer.best
    rows = [
        f"  {method.name:<44}{method.step_s:10.4g} s{method.compute_factor:8.3f}x"
        f"{_in_words(answer.seconds(method)):>10}   {_words(method)}".rstrip()
        for method in answer.by_time
    ]
    steps = round(answer.steps * best.compute_factor)
    needed = [f"{best.name} needs about {steps:,} steps for it (`train.steps`)"]
    return [
        f"time to the loss of {answer.steps:,} uncompressed steps (steps are simulated)",
        f"  {'':<44}{'a step':>12}{'steps':>9}{'to loss':>10}",
        *rows,
        *(f"  {name:<44}not possible: {why}" for name, why in answer.refusals),
        *(needed if steps > answer.steps else []),
        "",
        *_plan(config, options, best, answer),
    ]


def loss_json(
    config: "Config", options: SearchOptions, answer: "LossProposal", out: Path
) -> dict[str, Any]:
    """Return the object that `--json` prints."""
    best = answer.best
    of_plan = {} if best.proposal is None else plan_json(config, options, best.proposal, out)
    return {
        **of_plan,
        "truth": "simulated",
        "cluster": best.cluster.name,
        "batch": config.train.batch,
        "objective": options.objective.value,
        "steps": answer.steps,
        "methods": [
            {
                "name": method.name,
                "seconds": method.step_s,
                "compute_factor": method.compute_factor,
                "equal_loss_seconds": method.equal_loss_s,
                "seconds_to_loss": answer.seconds(method),
                "loss_gap": 0.0 if method.gap is None else method.gap.fraction,
                "price": "" if method.gap is None else method.gap.basis,
                "settings": loss_settings(method),
                "shape": method.plan.shape,
            }
            for method in answer.by_time
        ],
        "not_possible": dict(answer.refusals),
        "plans_simulated": answer.num_valued,
        "plan_file": str(out),
    }


def _in_words(seconds: float) -> str:
    from jaxpipe.run.terminal.progress import duration

    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def _words(method: "Method") -> str:
    choice = None if method.proposal is None else method.proposal.codecs
    gap = None if method.gap is None else str(method.gap)
    return "; ".join(filter(None, (choice and str(choice.codecs), gap)))


def _plan(
    config: "Config", options: SearchOptions, best: "Method", answer: "LossProposal"
) -> list[str]:
    from jaxpipe.propose.time_to_loss import codec_limit

    if best.proposal is not None:
        # The codecs that the output lists were chosen within this limit.
        section = replace(config.plan, codecs=codec_limit(config))
        return plan_lines(replace(config, plan=section), options, best.proposal)
    return [
        *answer.notices,
        *drawn(config, best.plan, best.cluster),
        f"{answer.num_valued} plans simulated",
    ]
