"""The matrix that `nvidia-smi topo -m` prints: what joins each two GPUs of a host.

::

            GPU0    GPU1    NIC0    CPU Affinity
    GPU0     X      NV2     PIX     0-15
    GPU1    NV2      X      SYS     0-15
    NIC0    PIX     SYS      X

`NV#` is a bonded set of # NVLinks; PIX, PXB, PHB, NODE and SYS are ways through PCIe, ever longer.
What they are worth stands in `data/gpu_links.csv`.
"""

import re
from functools import cache
from importlib import resources

from topo.cluster_file import Speed
from topo.csv_table import csv_rows

_NVLINKS = re.compile(r"NV(\d+)")
_GPU = re.compile(r"GPU\d+")
_TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def parse_gpu_links(text: str) -> tuple[tuple[str, ...], ...]:
    """Return what joins GPU `i` to GPU `j`, as nvidia-smi names it; `X` is the GPU itself.

    >>> parse_gpu_links('''
    ...         GPU0    GPU1    CPU Affinity
    ... GPU0     X      NV2     0-15
    ... GPU1    NV2      X      0-15
    ... ''')
    (('X', 'NV2'), ('NV2', 'X'))

    Raises:
        ValueError: there is no such matrix in the text, or a row of it is short.
    """
    lines = (line.split() for line in _TERMINAL_COLOURS.sub("", text).splitlines())
    head, *rows = [words for words in lines if words and _GPU.fullmatch(words[0])] or [[]]
    num_gpus = sum(1 for word in head if _GPU.fullmatch(word))
    if not rows or len(rows) != num_gpus or any(len(row) <= num_gpus for row in rows):
        raise ValueError("this is not what `nvidia-smi topo -m` prints: there is no GPU matrix")
    return tuple(tuple(row[1 : 1 + num_gpus]) for row in rows)


def gpu_link_speed(kind: str) -> Speed:
    """Return what a kind of link is worth.

    >>> gpu_link_speed("NV4").bandwidth_gbps
    800.0

    Raises:
        ValueError: the kind is not known.
    """
    match = _NVLINKS.fullmatch(kind)
    row = _kinds().get("NV" if match else kind)
    if row is None:
        choices = ", ".join(k for k in _kinds() if k != "NV")
        raise ValueError(f"{kind!r} is not a link between GPUs: known are NV1, NV2, ..., {choices}")
    links = int(match[1]) if match else 1
    return Speed(latency_ms=row.latency_ms, bandwidth_gbps=links * row.bandwidth_gbps)


@cache
def _kinds() -> dict[str, Speed]:
    text = (resources.files("topo") / "data" / "gpu_links.csv").read_text()
    return {
        row["kind"]: Speed(
            latency_ms=float(row["latency_ms"]), bandwidth_gbps=float(row["bandwidth_gbps"])
        )
        for row in csv_rows(text)
    }
