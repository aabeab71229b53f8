"""Tables and pictures of the results in a folder."""

from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
from matplotlib.figure import Figure

from experiments.compare_group.cases import Setting
from experiments.compare_group.real import Measured, read_measured
from experiments.compare_group.real_runs import Links
from experiments.compare_group.reports import (
    Results,
    against_published,
    against_theirs,
    end_to_end,
    implementation,
    read_results,
    scheduler,
)
from experiments.table import Row, markdown

_HOMOGENEOUS = "homogeneous"


def write_tables(folder: Path) -> None:
    """Write `tables.md` and the pictures of a folder of results; print the tables.

    Raises:
        RuntimeError: losses of settings that compute the same differ.
    """
    results = read_results(folder)
    tables: dict[str, list[Row]] = {
        "End to end: (a) and (c), seconds": end_to_end(results),
        "Effect of the scheduler: (c), (d), (b), seconds": scheduler(results),
        "Effect of the implementation: (b) and (d) on equal links, seconds": implementation(
            results, _HOMOGENEOUS
        ),
        "DT-FM's options executed, seconds": against_published(results),
        "Ours and DT-FM's, both scheduled, seconds": against_theirs(results),
    }
    draw_settings(results, folder / "settings.png")
    measured = read_measured(folder)
    if measured:
        rows = real_rows(measured)
        tables["The small model, trained"] = rows
        draw_real(rows, folder / "real.png")
    text = "\n\n".join(
        f"## {title}\n\n{markdown(rows, number='.2f')}" for title, rows in tables.items()
    )
    (folder / "tables.md").write_text(text + "\n")
    print(text)


LOSS_TOLERANCE = 1e-5
"""The largest relative difference of losses: float32 sums in another order, over a few steps.

Samples, microbatches and stages are equal in all settings, so the first losses differ only by the
order in which replicas are added. Later losses also depend on the all-reduces of gradients, norms
and the tied embedding, whose order is that of each plan's sync trees.
"""


_LIKE = {
    Links.SHAPED: Links.SHAPED,
    Links.NAMESPACES: Links.NAMESPACES,
    Links.NO_LATENCY: Links.NAMESPACES,
}
"""The links over which (c) ran that a setting is compared with: with latency for ZeRO-3 too."""


def real_rows(all_measured: Sequence[Measured]) -> list[Row]:
    """Return a row per network, kind of links and setting.

    Raises:
        RuntimeError: losses of a network differ.
    """
    check_losses(all_measured)
    groups: dict[tuple[str, Links, Setting], list[Measured]] = {}
    for each in all_measured:
        groups.setdefault((each.network, each.links, each.setting), []).append(each)
    seconds = {key: _step_s(group) for key, group in groups.items()}
    rows: list[Row] = []
    for (network, links, setting), group in groups.items():
        steps = [step for each in group for step in each.run.step_s[1:]]
        rows.append(
            {
                "network": network,
                "links (emulated)": links.value,
                "setting": setting.value,
                "step s (measured)": seconds[network, links, setting],
                "fastest to slowest step": f"{min(steps):.2f} to {max(steps):.2f}",
                "of (c)": seconds[network, links, setting]
                / seconds[network, _LIKE[links], Setting.OURS],
                "last loss": f"{group[0].run.losses[-1]:.6f}",
            }
        )
    return rows


def check_losses(all_measured: Sequence[Measured]) -> None:
    """Check that all settings compute equal losses on a network, up to `LOSS_TOLERANCE`.

    Raises:
        RuntimeError: losses differ.
    """
    first: dict[str, Measured] = {}
    for each in all_measured:
        wanted = first.setdefault(each.network, each)
        for step, (loss, other) in enumerate(
            zip(each.run.losses, wanted.run.losses, strict=True), 1
        ):
            if abs(loss - other) > LOSS_TOLERANCE * abs(other):
                raise RuntimeError(
                    f"losses of all settings must be equal: on {each.network}, step {step}, "
                    f"{each.setting} has loss {loss}, {wanted.setting} has {other}"
                )


def _step_s(group: Sequence[Measured]) -> float:
    """Return the median over the steps after the first of each run."""
    return median(step for each in group for step in each.run.step_s[1:] or each.run.step_s)


_DPI = 100
_COLORS = {
    Setting.MEGATRON_OPTIMAL: "#8c4f13",
    Setting.MEGATRON_P8: "#3d6fb4",
    Setting.OURS: "#3a9d78",
    Setting.OURS_UNSCHEDULED: "#a8d8c3",
    Setting.DTFM: "#b04a8b",
    Setting.DTFM_UNSCHEDULED: "#e0a9cb",
    Setting.ZERO3: "#7d8597",
}


def draw_settings(results: Results, path: Path) -> None:
    """Draw bars for paced seconds, lines for simulated ones, crosses for published ones."""
    figure = Figure(figsize=(12, 5), dpi=_DPI, layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(results.cases))
    width = 0.9 / len(Setting)
    for number, (setting, color) in enumerate(_COLORS.items()):
        x = places + (number - (len(Setting) - 1) / 2) * width
        each = [results.of(case, setting) for case in results.cases]
        paced = [one.paced or np.nan for one in each]
        axes.bar(x, paced, width=width, color=color, label=setting.value)
        axes.hlines(
            [one.simulated for one in each], x - width / 2, x + width / 2, color="black", lw=1.2
        )
        axes.plot(x, [one.published or np.nan for one in each], "x", color="red", ms=5)
    axes.set_yscale("log")
    axes.set_xticks(places, results.cases)
    axes.set_ylabel("seconds a step")
    axes.set_title(
        "24 layers, batch 1024. Bars: emulated, paced. Black lines: simulated. Crosses: published.",
        loc="left",
        fontsize=10,
    )
    axes.legend(frameon=False, fontsize=8, ncols=2)
    figure.savefig(path)


def draw_real(rows: Sequence[Row], path: Path) -> None:
    """Draw a panel per network and kind of links, with a bar per setting."""
    panels = list(dict.fromkeys((row["network"], row["links (emulated)"]) for row in rows))
    figure = Figure(figsize=(10, 2.2 * len(panels)), dpi=_DPI, layout="constrained")
    for number, panel in enumerate(panels, 1):
        chosen = [row for row in rows if (row["network"], row["links (emulated)"]) == panel]
        axes = figure.add_subplot(len(panels), 1, number)
        names = [str(row["setting"]) for row in chosen]
        seconds = [float(row["step s (measured)"]) for row in chosen]
        bars = axes.barh(names, seconds, color=[_COLORS[Setting(name)] for name in names])
        axes.bar_label(bars, [f"{value:.2f}" for value in seconds], padding=3)
        axes.set_title(f"{panel[0]}; links emulated by {panel[1]}", loc="left", fontsize=9)
        axes.set_xlabel("seconds a step (measured)", fontsize=8)
        axes.invert_yaxis()
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path)
