"""One rank of an all-reduce benchmark: the seconds of each algorithm after a barrier.

`ShapedTransport` shapes the links unless the kernel does (`shaped_by_kernel`).
"""

import json
import time
from collections.abc import Mapping
from typing import Any

from experiments.runtime_benchmark.programs.rank import run


def measure(transport: Any, task: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return, on rank 0, the seconds of the slowest rank per round and algorithm."""
    import numpy as np

    from jaxpipe import topo
    from jaxpipe.collective import AllReduceKind
    from jaxpipe.comm import (
        BARRIER_TAG,
        GATHER_TAG,
        ShapedTransport,
        all_reduce,
        barrier,
        gather_bytes,
    )

    num_ranks, timeout_s = transport.num_ranks, 1800.0
    links = transport
    if not task["shaped_by_kernel"]:
        cluster = topo.load(task["cluster"])
        links = ShapedTransport(transport, cluster, devices=range(num_ranks), scale=task["scale"])
    tree = tuple(tuple(island) for island in task["tree"])
    mine = np.full(task["num_bytes"] // 4, transport.rank + 1, np.float32)
    seconds: list[dict[str, Any]] = []
    for number in range(-1, task["rounds"]):
        for algorithm in task["algorithms"]:
            array = mine[:1024] if number < 0 else mine  # the first round warms up
            barrier(transport, tag=BARRIER_TAG, timeout_s=timeout_s)
            begin_s = time.perf_counter()
            kind = AllReduceKind(algorithm)
            total = all_reduce(links, array, tree, tag=0, timeout_s=timeout_s, algorithm=kind)
            taken_s = time.perf_counter() - begin_s
            assert (total == num_ranks * (num_ranks + 1) / 2).all(), algorithm
            if number >= 0:
                seconds.append({"algorithm": algorithm, "round": number, "seconds": taken_s})
    gathered = gather_bytes(
        transport, json.dumps(seconds).encode(), root=0, tag=GATHER_TAG, timeout_s=timeout_s
    )
    if gathered is None:
        return None
    ranks = [json.loads(each) for each in gathered]
    return [
        {**row, "seconds": max(rank[number]["seconds"] for rank in ranks)}
        for number, row in enumerate(ranks[0])
    ]


if __name__ == "__main__":
    run(measure)
