"""`python -m experiments.planner.run [published] [random] [growth]` writes results/."""

import resource
import sys
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.planner.baselines import best_random_at_least, by_region
from experiments.planner.clusters import Kind, Links, random_links, world
from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe import topo
from jaxpipe.search.dtfm import Budget, dtfm_cost, exact_grouping, link_weights, search

_HERE = Path(__file__).parent
_HEURISTIC = Budget(exhaustive=0)
_EQUAL = 1e-9
_NUMBER = ".4f"


def published(cases: Mapping[str, Any]) -> list[Row]:
    """Return cost and time on the published cases over all seeds, with shuffled devices."""
    rows: list[Row] = []
    for case in cases["published"]:
        cluster = topo.load(case["cluster"])
        links = Links(
            latency_s=cluster.latency_s, bandwidth_bytes_per_s=cluster.bandwidth_bytes_per_s
        )
        seeds = counted(cases["seeds"], "searches")
        runs = [_search_8x8(links, seed=seed) for seed in seeds]
        costs = [cost for cost, _, _ in runs]
        rows.append(
            {
                "case": case["case"],
                "goal [s]": case["goal"],
                "cost, median [s]": median(costs),
                "cost, worst [s]": max(costs),
                "search, median [s]": median(seconds for _, seconds, _ in runs),
                "search, longest [s]": max(seconds for _, seconds, _ in runs),
                "until the best, median [s]": median(reached for _, _, reached in runs),
            }
        )
    return rows


def _search_8x8(links: Links, *, seed: int) -> tuple[float, float, float]:
    """Return the cost, the seconds of the search, and the seconds until its best grouping."""
    shuffled = links.permuted(np.random.default_rng(seed).permutation(len(links)))
    start = time.perf_counter()
    weights = link_weights(shuffled.latency_s, shuffled.bandwidth_bytes_per_s, group_size=8)
    found = search(weights, num_groups=8, group_size=8, seed=seed)
    seconds = time.perf_counter() - start
    cost = dtfm_cost(shuffled.latency_s, shuffled.bandwidth_bytes_per_s, found.stages)
    return cost.total, seconds, found.improvements[-1][0]


def random(cases: Mapping[str, Any]) -> list[Row]:
    """Compare the heuristic search, without its exhaustive part, with exact search."""
    setup = cases["random"]
    generator = np.random.default_rng(setup["seed"])
    shapes = [
        (groups, size)
        for groups in range(1, setup["most"] + 1)
        for size in range(1, setup["most"] + 1)
        if setup["fewest"] <= groups * size <= setup["most"]
    ]
    ratios: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    seconds: dict[Kind, list[float]] = {kind: [] for kind in Kind}
    for index in counted(range(setup["count"]), "random problems"):
        kind = list(Kind)[index % len(Kind)]
        groups, size = shapes[generator.integers(len(shapes))]
        spare = int(generator.integers(0, min(2, setup["most"] - groups * size) + 1))
        links = random_links(kind, groups * size + spare, random=generator)
        ratio, taken = _above_exact(links, groups=groups, size=size, seed=index)
        ratios[kind].append(ratio)
        seconds[kind].append(taken)
    return [
        {
            "network": kind.value,
            "clusters": len(ratios[kind]),
            "equal to exact": sum(ratio <= 1 + _EQUAL for ratio in ratios[kind]),
            "within 1 %": sum(ratio <= 1.01 for ratio in ratios[kind]),
            "worst ratio": max(ratios[kind]),
            "search, median [s]": median(seconds[kind]),
        }
        for kind in Kind
    ]


def _above_exact(links: Links, *, groups: int, size: int, seed: int) -> tuple[float, float]:
    weights = link_weights(links.latency_s, links.bandwidth_bytes_per_s, group_size=size)
    found = search(weights, num_groups=groups, group_size=size, seed=seed, budget=_HEURISTIC)
    best = exact_grouping(weights, num_groups=groups, group_size=size)
    lowest = dtfm_cost(links.latency_s, links.bandwidth_bytes_per_s, best).total
    return found.total / lowest, found.seconds


def growth(cases: Mapping[str, Any]) -> list[Row]:
    """Return time and cost by number of devices, and the costs of two baselines."""
    setup = cases["growth"]
    return [_grown(setup, size, noise=noise) for size in setup["sizes"] for noise in setup["noise"]]


def _grown(setup: Mapping[str, Any], size: Mapping[str, Any], *, noise: float) -> Row:
    stages, replicas = size["stages"], size["replicas"]
    links, regions = world(
        setup["regions"],
        num_devices=stages * replicas,
        devices_per_host=setup["devices_per_host"],
        noise=noise,
        seed=setup["seed"],
    )
    start = time.perf_counter()
    weights = link_weights(links.latency_s, links.bandwidth_bytes_per_s, group_size=replicas)
    budget = Budget(seconds=size["seconds"])
    found = search(
        weights, num_groups=stages, group_size=replicas, seed=setup["seed"], budget=budget
    )
    seconds = time.perf_counter() - start
    memory_gb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9
    cost = dtfm_cost(links.latency_s, links.bandwidth_bytes_per_s, found.stages).total
    greedy = by_region(links, regions, stages=stages, replicas=replicas)
    chance = best_random_at_least(
        weights,
        stages=stages,
        replicas=replicas,
        count=setup["num_random"],
        random=np.random.default_rng(setup["seed"]),
    )
    row: Row = {
        "devices": stages * replicas,
        "stages x replicas": f"{stages} x {replicas}",
        "noise": noise,
        "cost [s]": cost,
        "region by region [s]": greedy,
        "best of 1,000 random, at least [s]": chance,
        "search [s]": seconds,
        "until the best [s]": found.improvements[-1][0],
        "memory, peak so far [GB]": memory_gb,
    }
    print(markdown([row], number=_NUMBER), flush=True)
    return row


_TABLES: Mapping[str, Callable[[Mapping[str, Any]], list[Row]]] = {
    "published": published,
    "random": random,
    "growth": growth,
}


def main(names: list[str]) -> None:
    """Compute and write the named tables; by default, all."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    for name in names or _TABLES:
        rows = _TABLES[name](cases)
        table = markdown(rows, number=_NUMBER)
        write_csv(rows, _HERE / "results" / f"{name}.csv", number=_NUMBER)
        (_HERE / "results" / f"{name}.md").write_text(table + "\n")
        print(table)


if __name__ == "__main__":
    main(sys.argv[1:])
