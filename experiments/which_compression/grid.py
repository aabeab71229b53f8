"""Compare the choice at each boundary with all of a grid, simulated.

    python -m experiments.which_compression.grid

On ten clusters with random links, `jaxpipe plan --objective loss` chooses a codec and a rank for
each boundary of a plan whose shape is set. The grid has every combination of codecs and ranks.
Adds rows to `results/grid.csv`; a cluster that has one is not compared again.
"""

import random
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments.progress import counted
from experiments.table import Row, append_csv, read_csv
from jaxpipe.collective import CodecKind, CodecLimit, Codecs, codecs_within
from jaxpipe.config import Config, config_of_settings
from jaxpipe.models import GptConfig
from jaxpipe.models.bottleneck_costs import bottlenecks_of
from jaxpipe.outer.loss_law import compute_factor
from jaxpipe.plan import Plan
from jaxpipe.propose.codec_choice import suited_to_codecs
from jaxpipe.propose.loss_prices import codec_gap, rank_gap, rank_ratios
from jaxpipe.propose.loss_proposal import Method
from jaxpipe.propose.options import Goal, SearchOptions
from jaxpipe.propose.outer_advice import num_parameters
from jaxpipe.propose.query import Query
from jaxpipe.propose.resolve import plan_from
from jaxpipe.propose.time_to_loss import propose_to_loss
from jaxpipe.schedule import Remat
from jaxpipe.simulate import plan_step_s
from jaxpipe.topo import load

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results" / "grid.csv"
_PLAIN = "uncompressed"


def main() -> None:
    """Compare on all clusters, and write the table."""
    cases = tomllib.loads((_HERE / "cases.toml").read_text())["grid"]
    known = {row["cluster"] for row in read_csv(_RESULTS)} if _RESULTS.exists() else set()
    seeds = [seed for seed in range(cases["clusters"]) if _name_of(seed) not in known]
    with TemporaryDirectory() as name:
        for seed in counted(seeds, "clusters"):
            shape = cases["shapes"][seed % len(cases["shapes"])]
            file = cluster_file(Path(name), seed, cases)
            append_csv(compare(file, cases["settings"], shape), _RESULTS)


def _name_of(seed: int) -> str:
    return f"drawn-{seed}"


def cluster_file(folder: Path, seed: int, cases: Mapping[str, Any]) -> Path:
    """Write a cluster of four hosts; links are drawn at random, each on a logarithmic scale."""
    draw, hosts = random.Random(seed), ("a", "b", "c", "d")

    def between(name: str) -> float:
        low, high = cases[name]
        return low * (high / low) ** draw.random()

    lines = ['name = "drawn"', "[[hosts]]", f"region = {list(hosts)}", "count = 1"]
    lines += [f"effective_tflops = {cases['effective_tflops']}"]
    lines += ["[inside_region]", "latency_ms = 0.1", "bandwidth_gbps = 10"]
    for number, source in enumerate(hosts):
        for to in hosts[number + 1 :]:
            lines += ["[[links]]", f'between = ["{source}", "{to}"]']
            lines += [f"{name} = {between(name):.4g}" for name in ("latency_ms", "bandwidth_gbps")]
    path = folder / f"{_name_of(seed)}.toml"
    path.write_text("\n".join(lines) + "\n")
    return path


def compare(cluster: Path, settings: Sequence[str], shape: Sequence[str]) -> Row:
    """Return the seconds of a step, at equal loss, of the choice and of the best of the grid."""
    settings = [*settings, *shape, f"plan.cluster={cluster}"]
    config = config_of_settings(settings)
    options = SearchOptions(objective=Goal.LOSS, budget=1.0)
    best = propose_to_loss(config, options).best
    grid = dict(_grid(config))
    first = min(grid, key=grid.__getitem__)
    return {
        "cluster": cluster.stem,
        "shape": best.plan.shape,
        "chosen": _words(best, settings),
        "chosen_s": f"{best.equal_loss_s:.4f}",
        "best_of_grid": first,
        "best_s": f"{grid[first]:.4f}",
        "points": len(grid),
        "ratio": f"{best.equal_loss_s / grid[first]:.3f}",
        "uncompressed_s": f"{grid[_PLAIN]:.4f}",
    }


def _grid(config: Config) -> Iterator[tuple[str, float]]:
    """Yield each combination of codecs and ranks, and its seconds of a step at equal loss."""
    model, plan = config.model, plan_from(config)
    assert isinstance(model, GptConfig), config
    query = Query(config=config, cluster=load(config.plan.cluster))
    _, plain = query.task(Remat.NONE)
    size, after = (
        num_parameters(plain),
        [sum(plan.cut[: n + 1]) for n in range(plan.num_stages - 1)],
    )
    kinds = codecs_within(CodecLimit.SAFE, for_gradients=False)
    of_gradients = codecs_within(CodecLimit.SAFE, for_gradients=True)
    for ratios in product(rank_ratios(model), repeat=len(after)):
        narrow = tuple(
            (place, model.dim // ratio)
            for place, ratio in zip(after, ratios, strict=True)
            if ratio > 1
        )
        of_narrow = replace(config, model=replace(model, bottlenecks=narrow))
        _, conditions = replace(query, config=of_narrow).task(Remat.NONE)
        gap = rank_gap(of_narrow.model)
        for gradients in of_gradients if plan.num_replicas > 1 else (CodecKind.NONE,):
            coded = replace(conditions, codecs=Codecs(gradients=gradients))
            suited = suited_to_codecs(plan, coded)
            for row in product(kinds, repeat=plan.num_replicas * len(after)):
                factor = compute_factor(
                    (gap.fraction if gap else 0.0) + _codec_gap(row, gradients),
                    num_parameters=size,
                )
                name = _name(row, ratios, gradients)
                yield name, factor * plan_step_s(_with_codecs(suited, row), coded)


def _codec_gap(row: Sequence[CodecKind], gradients: CodecKind) -> float:
    return max(codec_gap(Codecs(boundary=kind, gradients=gradients)).fraction for kind in row)


def _with_codecs(plan: Plan, row: Sequence[CodecKind]) -> Plan:
    """Return the plan with these codecs, of the boundaries of each replica in turn."""
    size = plan.num_stages - 1
    return replace(
        plan,
        pipelines=tuple(
            replace(pipeline, codecs=tuple(row[replica * size : (replica + 1) * size]))
            for replica, pipeline in enumerate(plan.pipelines)
        ),
    )


def _name(row: Sequence[CodecKind], ratios: Sequence[int], gradients: CodecKind) -> str:
    """Return what each boundary of each replica has, and the codec of gradients."""
    if set(row) == {CodecKind.NONE} and set(ratios) == {1} and gradients is CodecKind.NONE:
        return _PLAIN
    size = len(ratios)
    parts = [
        f"{kind} / {ratios[number % size]}" if ratios[number % size] > 1 else kind.value
        for number, kind in enumerate(row)
    ]
    words = ", ".join(parts)
    return words if gradients is CodecKind.NONE else f"{words}; gradients {gradients}"


def _words(method: Method, settings: Sequence[str]) -> str:
    """Return the name of a choice as those of the grid."""
    choice = None if method.proposal is None else method.proposal.codecs
    codecs = Codecs() if choice is None else choice.codecs
    cut = method.plan.cut
    needed = config_of_settings([*settings, *method.settings])
    narrow = dict(bottlenecks_of(needed.model))
    ratios = [
        needed.model.dim // narrow.get(sum(cut[: n + 1]), needed.model.dim)
        for n in range(len(cut) - 1)
    ]
    row = [
        kind
        for pipeline in method.plan.pipelines
        for kind in pipeline.codecs or (codecs.boundary,) * len(ratios)
    ]
    return _name(row, ratios, codecs.gradients)


if __name__ == "__main__":
    main()
