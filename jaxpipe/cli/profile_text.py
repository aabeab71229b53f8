"""A measured profile in words: a table of the parts of a model, and notes below it."""

from rich.table import Table

from jaxpipe.profile.gpt_parts import GptCosts
from jaxpipe.profile.part import TIMED, PartCosts
from jaxpipe.schedule import Op
from jaxpipe.topo.units import flops_text


def profile_table(measured: GptCosts) -> Table:
    """Return the times, speeds and memory of each part, with a row for each."""
    table = Table(box=None, pad_edge=False)
    table.add_column("milliseconds, median (p10-p90)")
    for name in (*TIMED, "GFLOP/s", "of peak", "kept MB", "compiled MB", "live MB"):
        table.add_column(str(name), justify="right", no_wrap=True)
    for part in (*measured.kinds, *measured.stages):
        table.add_row(
            part.name,
            *(_spread(part, op) for op in TIMED),
            *_speed(part, measured.peak_flops_per_s),
            # MB, not MiB.
            *(f"{size / 1e6:,.1f}" for size in (part.kept_bytes, part.compiled_bytes)),
            f"{part.live_bytes / 1e6:,.1f}",
        )
    return table


def _spread(part: PartCosts, op: Op) -> str:
    timing = part.timings[op]
    low, high = 1e3 * timing.p10_s, 1e3 * timing.p90_s  # ms
    return f"{1e3 * timing.median_s:.2f} ({low:.2f}-{high:.2f})"


def _speed(part: PartCosts, peak_flops_per_s: float) -> tuple[str, str]:
    if not part.forward_flops:
        return "-", "-"
    return f"{part.flops_per_s / 1e9:,.1f}", f"{part.flops_per_s / peak_flops_per_s:.1%}"


def profile_notes(measured: GptCosts, model: str) -> list[str]:
    """Return what the table does not show: the settings, the peak, the codecs."""
    settings = measured.settings
    return [
        f"{model} on {measured.device}, microbatch {settings.microbatch}, {measured.sequence} "
        f"tokens, {measured.config.compute_dtype}, float32 products on GPUs in "
        f"{settings.matmul_precision}, remat {settings.remat}: measured on this machine, at most "
        f"{settings.repeats} calls",
        f"matrix products reach {flops_text(measured.peak_flops_per_s)}: the peak",
        "codecs, nanoseconds a value to encode and to decode: "
        + ", ".join(
            f"{kind} {1e9 * seconds_of.encode_s:.1f} and {1e9 * seconds_of.decode_s:.1f}"
            for kind, seconds_of in measured.coding.items()
        ),
        "kept: residuals of one microbatch; compiled: peak of one function; live: "
        "parameters, moments, gradients and residuals",
    ]
