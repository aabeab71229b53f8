"""What the real runs say: step times, their ratios to ours, and that the losses are the same."""

from collections.abc import Sequence
from statistics import median

from experiments.compare_group.real import Measured
from experiments.compare_group.real_runs import Links
from experiments.compare_group.setting import Setting
from experiments.dtfm_iteration_time.table import Row

LOSS_TOLERANCE = 1e-5
"""How far losses may be apart, of their size: float32 sums in another order, over a few steps.

The samples of a step, its microbatches and the stages are the same everywhere, so the first losses
are equal but for the order in which replicas are summed. Later ones also saw gradients, norms and a
tied embedding's gradient, whose sums follow the trees of each plan.
"""


_LIKE = {
    Links.SHAPED: Links.SHAPED,
    Links.NAMESPACES: Links.NAMESPACES,
    Links.NO_LATENCY: Links.NAMESPACES,
}
"""Over which links ours is what others are compared with; with latency, where they have none."""


def real_rows(all_measured: Sequence[Measured]) -> list[Row]:
    """Return a row for each network, kind of links and setting.

    Raises:
        RuntimeError: the losses of a network are not the same.
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
    """Check that all settings compute the same losses on a network.

    Raises:
        RuntimeError: they do not.
    """
    first: dict[str, Measured] = {}
    for each in all_measured:
        wanted = first.setdefault(each.network, each)
        for step, (loss, other) in enumerate(
            zip(each.run.losses, wanted.run.losses, strict=True), 1
        ):
            if abs(loss - other) > LOSS_TOLERANCE * abs(other):
                raise RuntimeError(
                    f"settings compute the same: on {each.network}, step {step}, {each.setting} "
                    f"has loss {loss}, {wanted.setting} {other}"
                )


def _step_s(group: Sequence[Measured]) -> float:
    """Return the median over the steps after the first of each run."""
    return median(step for each in group for step in each.run.step_s[1:] or each.run.step_s)
