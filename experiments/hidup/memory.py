"""Peak memory of a data-parallel step on V100s: `python -m experiments.hidup.memory`.

The paper says that PyTorch DDP ran out of memory on 8 GPUs, and its table 3 has the peak on 4.
Nothing runs here: XLA's compiler plans the memory of one device, for 32 samples, all experts,
gradients and Adam's moments. DDP has a copy of the gradients in its buckets, which is added.

Needs the extra `aot`.
"""

from pathlib import Path

from experiments.hidup.workloads import MODELS
from experiments.table import Row, markdown, read_csv, write_csv
from jaxpipe.baselines.autoshard.hlo import run_python

_HERE = Path(__file__).parent
_ON_4 = _HERE / "published" / "table-3-ddp.csv"


def main() -> None:
    """Compile all cases, a process for each."""
    on_4 = {row["model"]: row["peak_gb"] for row in read_csv(_ON_4)}
    rows = [_row(model, devices, on_4[model]) for model in MODELS for devices in (4, 8)]
    write_csv(rows, _HERE / "results" / "memory.csv")
    print(markdown(rows))


def _row(model: str, devices: int, on_4: str) -> Row:
    found = run_python(
        "experiments.hidup.memory_step",
        {"model": model, "devices": devices},
        num_devices=1,
        path=_HERE.parents[1],
    )
    buckets = found["parameter_bytes"]
    return {
        "model": model,
        "GPUs": devices,
        "parameters": f"{found['parameter_bytes'] / 4e6:.0f} M",
        "state, GB": f"{found['arguments'] / 1e9:.2f}",
        "peak, GB (compiled)": f"{found['peak'] / 1e9:.2f}",
        "with buckets, GB": f"{(found['peak'] + buckets) / 1e9:.2f}",
        "published, GB": on_4 if devices == 4 else "ran out",
    }


if __name__ == "__main__":
    main()
