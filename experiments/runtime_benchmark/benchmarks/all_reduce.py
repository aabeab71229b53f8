"""All-reduce over the shaped links of two regions, compared with its alpha-beta bound.

Every pair of ranks has a link of its own, slowed down by `scale`, so that eight ranks on a few
cores are not the bottleneck. `ShapedTransport` cannot shape the MPI library's own all-reduce, whose
messages bypass it (the claim `library` measures that one). Two algorithms that MPI libraries use
for large arrays stand in for it, `ring` and `halving` (recursive halving and doubling, Rabenseifner
2004), with ranks in their natural order, as a library takes them.

The bound is the time of the algorithm's own steps by latency and bandwidth alone. Ranks compute
nothing and lose no time: a send is posted when the steps before it are done, a message arrives when
its link says so, and the step that receives it is done at that moment. Steps, chunks and
links are those of the emulated run, so a measurement can only be slower.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from experiments.runtime_benchmark.bench import Bench, Claim, Measurement
from experiments.runtime_benchmark.picture import bars
from experiments.runtime_benchmark.runs import run_ranks
from experiments.table import Row, grouped, numbers
from jaxpipe import topo
from jaxpipe.collective import (
    Act,
    AllReduceKind,
    Step,
    SyncTree,
    all_reduce_steps,
    ranks,
    reduce_and_broadcast,
)
from jaxpipe.comm.shaped import links_of_rank
from jaxpipe.network import EventQueue, Link
from jaxpipe.topo import Cluster

_HERE = Path(__file__).parents[1]
_LIBRARY = ("ring", "halving")
_ITEM_BYTES = 4
_CHUNK_BYTES = 2**20


def measurements(bench: Bench) -> list[Measurement]:
    """Return the one part: a row per round and algorithm, with its alpha-beta seconds."""
    return [Measurement(columns={}, measure=partial(_measure, bench))]


def _measure(bench: Bench) -> list[Row]:
    case = bench.cases["all_reduce"]
    tree = tuple(tuple(island) for island in case["tree"])
    task = {**case, "cluster": str(_HERE / case["cluster"])}
    cluster = topo.load(task["cluster"])
    bounds = {
        name: alpha_beta_s(
            AllReduceKind(name), tree, cluster, num_bytes=case["num_bytes"], scale=case["scale"]
        )
        for name in case["algorithms"]
    }
    return [
        {
            **row,
            "alpha_beta_s": bounds[row["algorithm"]],
            "best_alpha_beta_s": min(bounds.values()),
            "num_bytes": case["num_bytes"],
            "scale": case["scale"],
        }
        for row in run_ranks("all_reduce", task, num_ranks=sum(map(len, tree)))
    ]


def summarise(raw: Sequence[Row]) -> list[Row]:
    """Return a row per algorithm, the fastest first."""
    groups = grouped(raw, "algorithm")
    seconds = {name: median(numbers(rows, "seconds")) for (name,), rows in groups.items()}
    fastest_s = min(seconds.values())
    return [
        {
            "algorithm": name,
            "used by MPI libraries": "yes" if name in _LIBRARY else "",
            "seconds": seconds[name],
            "alpha_beta_s": numbers(groups[name,], "alpha_beta_s")[0],
            "over_best_bound": seconds[name] / numbers(groups[name,], "best_alpha_beta_s")[0],
            "times_the_fastest": seconds[name] / fastest_s,
        }
        for name in sorted(seconds, key=lambda name: seconds[name])
    ]


ALL_REDUCE = Claim(
    aim="the best is within 15 % of its alpha-beta bound, and twice as fast as MPI's algorithms",
    measurements=measurements,
    summarise=summarise,
    draw=bars(
        "algorithm",
        value="seconds",
        title="All-reduce over shaped links of two regions (emulated; dashed: best by alpha-beta)",
        aim="best_alpha_beta_s",
    ),
)


def alpha_beta_s(
    algorithm: AllReduceKind, tree: SyncTree, cluster: Cluster, *, num_bytes: int, scale: float
) -> float:
    """Return the seconds until the last rank has the sum of float32 values and has sent its own.

    >>> from jaxpipe import topo
    >>> cluster = topo.load("homogeneous:hosts=2,delay_ms=1000,bandwidth_gbps=8e-9")
    >>> alpha_beta_s(AllReduceKind.SHARDED, (0, 1), cluster, num_bytes=8, scale=1.0)
    9.0
    """
    members = ranks(tree)
    devices = tuple(range(len(members)))
    message_size = _CHUNK_BYTES // _ITEM_BYTES
    size = num_bytes // _ITEM_BYTES
    queue, run = EventQueue(), {}
    for rank in members:
        run[rank] = _Rank(
            rank,
            all_reduce_steps(algorithm, tree, rank, size=size, message_size=message_size),
            links_of_rank(queue, cluster, devices, rank=rank, scale=scale),
            peers=run,
        )
    for rank in run.values():
        queue.at(0.0, rank.advance)
    queue.run()
    assert not any(any(rank.programs) for rank in run.values()), "the ranks wait for each other"
    return queue.now_s


class _Rank:
    """The remaining steps of one rank, and the messages that have arrived for it."""

    def __init__(
        self,
        rank: int,
        steps: Sequence[Step],
        links: Sequence[Link],
        *,
        peers: Mapping[int, "_Rank"],
    ):
        self.rank, self.links, self.peers = rank, links, peers
        self.programs = [deque(program) for program in reduce_and_broadcast(steps)]
        self.arrived = Counter[int]()

    def advance(self) -> None:
        """Do all steps up to the first of each list whose message has not arrived."""
        for program in self.programs:
            self._advance(program)

    def _advance(self, steps: deque[Step]) -> None:
        while steps:
            step = steps[0]
            if step.act is Act.SEND:
                deliver = partial(self.peers[step.peer].deliver, self.rank)
                self.links[step.peer].send(step.part.size * _ITEM_BYTES, deliver)
            elif step.act is not Act.SETTLE:
                if not self.arrived[step.peer]:
                    return
                self.arrived[step.peer] -= 1
            steps.popleft()

    def deliver(self, source: int) -> None:
        """Take a message that arrives from the rank `source`."""
        self.arrived[source] += 1
        self.advance()
