"""Links between the GPUs of a host, from the output of `nvidia-smi topo -m`.

::

            GPU0    GPU1    NIC0    CPU Affinity
    GPU0     X      NV2     PIX     0-15
    GPU1    NV2      X      SYS     0-15
    NIC0    PIX     SYS      X

`NV#` is a bonded set of # NVLinks; PIX, PXB, PHB, NODE and SYS are PCIe paths of increasing length.
Their speeds are in `data/gpu_links.csv`.
"""

import re
from functools import cache
from importlib import resources

from jaxpipe.foreign_file import lines_of
from jaxpipe.topo.cluster_file import Speed
from jaxpipe.topo.csv_table import csv_rows

_NVLINKS = re.compile(r"NV(\d{1,4})")
_GPU = re.compile(r"GPU\d+")
_TERMINAL_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


def parse_gpu_links(text: str) -> tuple[tuple[str, ...], ...]:
    """Return the kind of link from GPU `i` to GPU `j` by nvidia-smi's name; `X` is the GPU itself.

    >>> parse_gpu_links('''
    ...         GPU0    GPU1    CPU Affinity
    ... GPU0     X      NV2     0-15
    ... GPU1    NV2      X      0-15
    ... ''')
    (('X', 'NV2'), ('NV2', 'X'))

    Raises:
        ValueError: the text has no such matrix, or a row of it is too short.
    """
    # nvidia-smi underlines its heading, also in a pipe.
    lines = (line.split() for line in lines_of(_TERMINAL_COLOURS.sub("", text)))
    # Rows of NICs and the legend begin with other words.
    head, *rows = [cells for cells in lines if cells and _GPU.fullmatch(cells[0])] or [[]]
    num_gpus = sum(1 for cell in head if _GPU.fullmatch(cell))
    if not rows or len(rows) != num_gpus or any(len(row) <= num_gpus for row in rows):
        raise ValueError(
            "cannot parse the text: it must be the output of `nvidia-smi topo -m`, and has no GPU "
            "matrix"
        )
    return tuple(tuple(row[1 : 1 + num_gpus]) for row in rows)


def gpu_link_speed(kind: str) -> Speed:
    """Return the speed of a kind of link.

    >>> gpu_link_speed("NV4").bandwidth_gbps
    800.0

    Raises:
        ValueError: the kind is unknown.
    """
    match = _NVLINKS.fullmatch(kind)
    row = _kinds().get("NV" if match else kind)
    if row is None:
        choices = ", ".join(k for k in _kinds() if k != "NV")
        raise ValueError(
            f"{kind[:40]!r} is not a link between GPUs: choose from NV1, NV2, ..., {choices}"
        )
    links = int(match[1]) if match else 1
    return Speed(latency_ms=row.latency_ms, bandwidth_gbps=links * row.bandwidth_gbps)


@cache
def _kinds() -> dict[str, Speed]:
    text = (resources.files("jaxpipe.topo") / "data" / "gpu_links.csv").read_text()
    return {
        row["kind"]: Speed(
            latency_ms=float(row["latency_ms"]), bandwidth_gbps=float(row["bandwidth_gbps"])
        )
        for row in csv_rows(text)
    }
