"""What `jaxpipe plan` prints of the codecs that `plan.codecs` lets it choose."""

from collections import Counter
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from jaxpipe.collective import CodecLimit, Codecs
    from jaxpipe.propose.codec_choice import CodecChoice

_FEW = 6


def codec_lines(
    limit: "CodecLimit", choice: "CodecChoice | None", *, configured: "Codecs"
) -> list[str]:
    """Return the step with the chosen codecs, without them, and with the fastest other ones."""
    if choice is None:
        name = str(configured)
        return [] if name == "no codecs" else [f"codecs of the configuration: {name}", ""]
    others = sorted(
        (trial for trial in choice.trials if trial.codecs != choice.codecs),
        key=lambda trial: trial.step_s,
    )
    rows = [
        (str(choice.codecs), choice.step_s, "chosen"),
        *((str(other.codecs), other.step_s, "") for other in others[:_FEW]),
    ]
    if all(name != "no codecs" for name, _, _ in rows):
        rows.append(("no codecs", choice.plain_s, ""))
    if choice.other_plain_s != choice.plain_s:
        rows.append(("no codecs", choice.other_plain_s, "the plan found without codecs"))
    return [
        f"codecs of this plan, at most {limit} (simulated, a long step by its first "
        "microbatches; encoded by one core of each host)",
        *(f"  {name:<40}{seconds:10.4g} s   {note}".rstrip() for name, seconds, note in rows),
        *_own_codecs(choice),
        "",
    ]


def _own_codecs(choice: "CodecChoice") -> list[str]:
    """Return how many boundaries between stages have which codec, where they differ."""
    counts = Counter(codec for pipeline in choice.plan.pipelines for codec in pipeline.codecs)
    if len(counts) < 2:
        return []
    parts = ", ".join(f"{codec} at {count}" for codec, count in sorted(counts.items()))
    return [
        f"  boundaries between stages, by the codec that each needs: {parts} "
        f"({choice.step_s:.4g} s); they are in the plan file"
    ]


def codec_json(choice: "CodecChoice | None") -> dict[str, Any]:
    """Return the codecs, and the seconds of a step with each pair of them."""
    if choice is None:
        return {}
    return {
        "codecs": {
            "boundary": choice.codecs.boundary.value,
            "gradients": choice.codecs.gradients.value,
            "of_boundaries": [list(pipeline.codecs) for pipeline in choice.plan.pipelines],
            "plain_seconds": choice.plain_s,
            "other_plain_seconds": choice.other_plain_s,
            "trials": [
                {
                    "boundary": trial.codecs.boundary.value,
                    "gradients": trial.codecs.gradients.value,
                    "seconds": trial.step_s,
                }
                for trial in choice.trials
            ],
        }
    }


def codec_settings(choice: "CodecChoice | None") -> tuple[str, ...]:
    """Return the settings with which a configuration trains with the chosen codecs."""
    if choice is None:
        return ()
    codecs = choice.codecs
    settings = [f"comm.boundary={codecs.boundary}", f"comm.gradients={codecs.gradients}"]
    if codecs.gradients.facts.takes_fraction:
        settings.append(f"comm.top_k_fraction={codecs.top_k_fraction}")
    return tuple(settings)
