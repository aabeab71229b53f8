"""`jaxpipe simulate`: the predicted step of a configuration, before it runs."""

import json
import os
from dataclasses import asdict
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

if TYPE_CHECKING:  # these import numpy, which `--help` can do without
    from jaxpipe.run.forecast.prediction import Prediction

_FEW_LINKS = 8


def simulate(
    config: tyro.conf.Positional[Path],
    *,
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    png: Path | None = None,
    out: Annotated[Path | None, tyro.conf.arg(aliases=["-o"])] = None,
    json_: Annotated[bool, tyro.conf.arg(name="json")] = False,
) -> int:
    """Predict a step of a configuration: seconds, what binds, bytes per link, memory per rank.

    Nothing runs. Fields of `[plan]` that are not set are searched first, as `jaxpipe train` does.

    Args:
        config: a TOML file.
        settings: a change to it, such as `train.batch=64`; may be repeated.
        png: a PNG, SVG or PDF to draw: the timeline of the step.
        out: a trace file to write, for Perfetto.
        json_: print one JSON object and nothing else.
    """
    from jaxpipe.config import load_config
    from jaxpipe.run.folder.output_files import check_output, check_picture
    from jaxpipe.run.forecast.prediction import predict
    from jaxpipe.run.terminal.console import console, train_command
    from jaxpipe.run.terminal.progress import measuring, showing_progress
    from jaxpipe.run.verdict import check_can_run
    from jaxpipe.trace import plot, write_chrome

    check_picture("--png", png)
    check_output("--out", out)
    read = load_config(config, settings, notice=None if json_ else console.print)
    with showing_progress("predicting a step") as display:
        prediction = predict(read, observe=lambda detail: display.update(measuring(detail)))
    check_can_run(read, prediction.plan, prediction.cluster, environment=os.environ)
    if json_:
        print(json.dumps(_json(prediction)))
    else:
        console.print("\n".join(_lines(prediction)), markup=False)
    if png is not None:
        plot(prediction.split.trace, png, step=1)
    if out is not None:
        write_chrome(prediction.split.trace, out)
    if not json_:
        written = {"picture": png, "trace": out}
        ends = [f"{name} -> {file}" for name, file in written.items() if file is not None]
        ends.append(f"next: {train_command(config, settings)}")
        console.print("\n" + "\n".join(ends), markup=False)
    return 0


def _lines(prediction: "Prediction") -> list[str]:
    from jaxpipe.run.forecast.compressed_messages import compression_lines
    from jaxpipe.run.forecast.plan_memory import memory_lines, shared_bytes
    from jaxpipe.trace import Spent, mean_spent_s

    plan, binding = prediction.plan, prediction.binding
    mean = mean_spent_s(prediction.account)
    parts = "   ".join(
        f"{cause.value} {mean[cause] / prediction.split.step_s:.1%}"
        for cause in Spent
        if mean[cause]
    )
    return [
        *prediction.resolution.lines,
        f"{plan.num_ranks} ranks, {plan.shape}, {plan.schedule_name}, on cluster "
        f"{prediction.cluster.name}",
        "",
        f"a step takes {prediction.step_s:.4g} s (simulated): {prediction.tokens_per_s:,.0f} "
        f"tokens/s, bubble {prediction.bubble:.1%}",
        f"mean rank   {parts}",
        f"binds       {binding.kind}: {binding.name}, {binding.share:.0%} of the step",
        *_link_lines(prediction),
        *compression_lines(prediction.compressed),
        "",
        *memory_lines(prediction.memory, shared_room=shared_bytes(prediction.cluster)),
    ]


def _link_lines(prediction: "Prediction") -> list[str]:
    """Return a table of the busiest links: bytes of a step, and the share that they occupy."""
    if not prediction.links:
        return []
    shown, rest = prediction.links[:_FEW_LINKS], prediction.links[_FEW_LINKS:]
    width = max(len(f"{link.source} -> {link.to}") for link in shown)
    lines = ["", f"{'links':<{width}}{'activations':>15}{'gradients':>15}{'occupied':>12}"]
    for link in shown:
        sizes = "".join(
            f"{f'{size / 1e6:,.4g} MB':>15}"
            for size in (link.activation_bytes, link.gradient_bytes)
        )
        lines.append(f"{f'{link.source} -> {link.to}':<{width}}{sizes}{link.share:>12.1%}")
    if rest:
        lines.append(f"and {len(rest)} links with less")
    return lines


def _json(prediction: "Prediction") -> dict[str, Any]:
    plan, binding, split = prediction.plan, prediction.binding, prediction.split
    return {
        "truth": "simulated",
        "cluster": prediction.cluster.name,
        "seconds": prediction.step_s,
        "tokens_per_s": prediction.tokens_per_s,
        "bubble": prediction.bubble,
        "breakdown": split.seconds_by_cause | {"outer": prediction.outer_s},
        "compressed": [asdict(row) for row in prediction.compressed],
        "binding": {"kind": binding.kind, "name": binding.name, "share": binding.share},
        "stages": [pipeline.num_stages for pipeline in plan.pipelines],
        "cuts": [pipeline.cut for pipeline in plan.pipelines],
        "schedule": plan.schedule_name,
        "all_reduce": plan.all_reduce.value,
        "links": [
            {
                "source": link.source,
                "to": link.to,
                "activation_bytes": link.activation_bytes,
                "gradient_bytes": link.gradient_bytes,
                "occupied": link.share,
            }
            for link in prediction.links
        ],
        "memory": [
            {
                "ranks": memory.ranks,
                "bytes": memory.needs.total,
                "device_bytes": None if memory.room_bytes == inf else int(memory.room_bytes),
            }
            for memory in prediction.memory
        ],
    }
