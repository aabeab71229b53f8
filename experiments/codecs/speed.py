"""Seconds in which one core encodes and decodes a value: `python -m experiments.codecs.speed`.

Measured in turn, codec by codec, beside a copy of the same float32 values, which an encoder has to
read as well. `jaxpipe.collective.codec.codecs.coding_of` has the figures with which simulations
count where no profile has measured them; the last column compares them.
"""

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median

import numpy as np

from experiments.table import Row, markdown, write_csv
from jaxpipe.collective import CodecKind, codec_of, coding_of

_RESULTS = Path(__file__).parent / "results"
_SIZES = (2**16, 2**20, 2**22)
"""Values of a message; an activation of GPT-XL has 4.2 million."""
_ROUNDS = 15


def main(sizes: Sequence[int] = _SIZES) -> None:
    """Measure all codecs, print the table, and write `results/speed.csv`."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    rows = [row for size in sizes for row in _rows(size)]
    write_csv(rows, _RESULTS / "speed.csv")
    print(markdown(rows))


def _rows(size: int) -> list[Row]:
    values = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    target = np.empty_like(values)
    calls: dict[tuple[str, str], Callable[[], object]] = {
        ("copy", ""): lambda: np.copyto(target, values)
    }
    for kind in CodecKind:
        codec = codec_of(kind)
        if codec is not None:
            encoded = codec.encode(values)
            calls[kind, "encode"] = lambda codec=codec: codec.encode(values)
            calls[kind, "decode"] = lambda codec=codec, encoded=encoded: codec.decode(
                encoded, size=size
            )
    seconds: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            begin_s = time.perf_counter()
            call()
            seconds[name].append(time.perf_counter() - begin_s)
    each_ns = {name: 1e9 * median(taken) / size for name, taken in seconds.items()}
    copy_ns = each_ns.pop(("copy", ""))
    return [
        {
            "values": size,
            "codec": kind,
            "direction": direction,
            "ns per value": f"{taken:.2f}",
            "times a copy": f"{taken / copy_ns:.1f}",
            "ns in simulations": f"{_assumed_ns(CodecKind(kind), direction):.1f}",
        }
        for (kind, direction), taken in each_ns.items()
    ]


def _assumed_ns(kind: CodecKind, direction: str) -> float:
    coding = coding_of(kind, {})
    return 1e9 * (coding.encode_s if direction == "encode" else coding.decode_s)


if __name__ == "__main__":
    main([int(size) for size in sys.argv[1:]] or _SIZES)
