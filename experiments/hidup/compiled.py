"""Compile `vit-switch` for 64 V100s, and count its collectives: needs the extra `aot`.

    python -m experiments.hidup.compiled

Nothing runs. The strategy's own list counts the collectives of parameters one by one; the compiler
combines them.
"""

from pathlib import Path
from typing import Final

from experiments.table import Row, markdown, write_csv
from jaxpipe.baselines.autoshard.hlo import run_python

_HERE = Path(__file__).parent
_MODEL: Final = "vit-switch"
_DEVICES, _SAMPLES = 64, 16


def main() -> None:
    """Compile GShard's strategy and the one that the duplex search finds, a process for each."""
    rows = [_row(system) for system in ("gshard", "hidup")]
    write_csv(rows, _HERE / "results" / "compiled.csv")
    print(markdown(rows))


def _row(system: str) -> Row:
    found = run_python(
        "experiments.hidup.compiled_step",
        {"model": _MODEL, "system": system, "devices": _DEVICES, "samples": _SAMPLES},
        num_devices=_DEVICES,
        path=_HERE.parents[1],
    )
    listed, compiled = found["strategy"], found["compiled"]
    return {
        "model": _MODEL,
        "GPUs": _DEVICES,
        "system": system,
        "all-to-alls, listed": listed.get("all-to-all", 0),
        "compiled": compiled["all2all"],
        "with products beside them": found["with_products"],
        "summed gradients, listed": listed.get("all-reduce", 0),
        "all-reduces, compiled": compiled["allreduce"],
        "MiB, listed": f"{found['listed_mib']:.1f}",
        "MiB, compiled": f"{found['mib']['all-reduce']:.1f}",
        "other, compiled": compiled["allgather"] + compiled["reducescatter"],
        "compile s": f"{found['compile_s']:.0f}",
    }


if __name__ == "__main__":
    main()
