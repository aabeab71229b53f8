"""GPU types: their peak speed by precision, their memory and their power."""

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib import resources

from jaxpipe.topo.csv_table import csv_rows
from jaxpipe.topo.units import bytes_from_gib, flops_per_s_from_tflops


class Precision(StrEnum):
    """The number format of the inputs of a matrix product."""

    FP32 = "fp32"
    TF32 = "tf32"
    FP16 = "fp16"
    BF16 = "bf16"
    FP8 = "fp8"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """A type of GPU: its memory, and its peak FLOP/s in each precision that it supports.

    `watts` is its thermal design power, None if that is unknown. A type that a cluster file
    describes has no `peaks` of its own.
    """

    name: str
    memory_bytes: int
    peaks: tuple[tuple[Precision, float], ...]
    source: str = ""
    watts: float | None = None

    def product_precision(self, precision: Precision) -> Precision:
        """Return the precision of its products: float32 where it should be a TF32 that it lacks.

        >>> gpu("V100-SXM2").product_precision(Precision.TF32).value
        'fp32'
        """
        lacks = precision is Precision.TF32 and precision not in dict(self.peaks)
        return Precision.FP32 if lacks else precision

    def peak_flops_per_s(self, precision: Precision) -> float:
        """Return the dense FLOP/s that the vendor states.

        Raises:
            ValueError: the GPU does not support that precision.
        """
        for supported, flops_per_s in self.peaks:
            if supported == precision:
                return flops_per_s
        choices = ", ".join(supported for supported, _ in self.peaks)
        raise ValueError(f"`{precision}` is not supported by a {self.name}: choose from {choices}")


def gpu(name: str) -> Gpu:
    """Return a type of GPU by its name in `data/gpus.csv`.

    >>> v100 = gpu("V100-SXM2")
    >>> v100.memory_bytes, v100.peak_flops_per_s(Precision.FP16)
    (17179869184, 125000000000000.0)

    Raises:
        ValueError: the table does not have it.
    """
    table = _table()
    if name not in table:
        choices = ", ".join(table)
        raise ValueError(
            f"`gpu` must be a known type, not {name!r:.80}: choose from {choices}, or describe it "
            "with `memory_gib` and `tflops`"
        )
    return table[name]


def gpu_names() -> tuple[str, ...]:
    """Return the names of all types in `data/gpus.csv`."""
    return tuple(_table())


@cache
def _table() -> dict[str, Gpu]:
    text = (resources.files("jaxpipe.topo") / "data" / "gpus.csv").read_text()
    return {row["name"]: _gpu(row) for row in csv_rows(text)}


def _gpu(row: dict[str, str]) -> Gpu:
    # An empty cell: the type does not support that precision.
    stated = [(precision, row[precision]) for precision in Precision if row[precision]]
    return Gpu(
        name=row["name"],
        memory_bytes=bytes_from_gib(float(row["memory_gib"])),
        peaks=tuple((p, flops_per_s_from_tflops(float(tflops))) for p, tflops in stated),
        source=row["source"],
        watts=float(row["watts"]),
    )
