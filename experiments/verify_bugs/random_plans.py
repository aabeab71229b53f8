"""Random plans without an error, of which every certificate should say that they are right.

`python -m experiments.verify_bugs.random_plans COUNT [FIRST]` verifies the plans of the seeds from
FIRST on, one after the other, and appends a row for each to `results/plans.csv`. With `--meshes`,
each rank has a mesh of two to four devices; the rows are those of `results/meshes.csv`. With
`--codecs`, messages between stages, sums of gradients or both have codecs (`results/codecs.csv`).
"""

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import tyro

from experiments.table import append_csv
from jaxpipe.collective import CodecKind
from jaxpipe.config import Config, config_from
from jaxpipe.config.tuning import tuned_model_from
from jaxpipe.errors import UserError
from jaxpipe.plan import Plan
from jaxpipe.propose.resolve import plan_from
from jaxpipe.runtime.process.quick_compiles import quick_flags, threads_of_devices
from jaxpipe.schedule import ScheduleKind
from jaxpipe.verify.stand_in import DataForm

_RESULTS = Path(__file__).parent / "results"
_MOST_DEVICES = 16

Tree = dict[str, dict[str, Any]]

_GPT = {"dim": 16, "num_heads": 4, "sequence": 12, "vocabulary": 40}
_LLAMA = {**_GPT, "family": "llama", "num_kv_heads": 2, "hidden": 24}


_MESHES: tuple[dict[str, Any], ...] = (
    {"data": 2},
    {"data": 2, "sharded": True},
    {"context": 2},
    {"context": 2, "sharded": True},
    {"tensor": 2},
    {"tensor": 2, "sequence_parallel": True},
    {"data": 2, "tensor": 2},
    {"context": 2, "tensor": 2},
    {"data": 2, "context": 2, "sharded": True},
)


def random_plan(
    random: Random, *, most_ranks: int = 8, meshes: bool = False, codecs: bool = False
) -> tuple[Config, Plan, DataForm]:
    """Return a configuration, its plan, and the form of its data.

    Combinations that a run refuses are drawn again.
    """
    while True:
        tree = _tree(random)
        if meshes:
            tree["mesh"] = random.choice(_MESHES)
        if codecs:
            tree["comm"] = _codecs(random)
        try:
            config = config_from(tree)
            plan = plan_from(config)
            tuned_model_from(config)  # refuses some frozen parameters
        except UserError:
            continue
        if plan.num_ranks > most_ranks or (codecs and not _uses_codec(config, plan)):
            continue
        num_sources = len(config.data.folders)
        can_mask = not config.model.classes
        return (
            config,
            plan,
            DataForm(
                masked=tuple(can_mask and random.random() < 0.3 for _ in range(num_sources)),
                labelled=config.model.classes > 0,
                packed=config.data.pack,
                weights=config.data.weights,
            ),
        )


def _tree(random: Random) -> Tree:
    """Return a configuration, which may be one that a run refuses."""
    num_layers = random.randint(2, 6)
    shape = _even(random) if random.random() < 0.6 else _uneven(random, num_layers)
    plan, batch = shape
    tree: Tree = {
        "run": {"folder": "run", "seed": random.randint(0, 2**32 - 1)},
        "data": {"folder": "data", "pack": random.random() < 0.25},
        "model": {**_model(random), "num_layers": num_layers},
        "plan": {
            "cluster": random.choice(("laptop", "aws")),
            "schedule": random.choice([kind.value for kind in ScheduleKind]),
            "all_reduce": random.choice(
                ("hierarchical", "tree", "ring", "halving", "sharded", "chain", "central")
            ),
            **plan,
        },
        "train": {
            "batch": batch,
            "loop": random.choice(("scan", "unrolled")),
            "remat": random.choice(("none", "dots", "full")),
            "frozen": random.choice(((), (), ("embed.*",), ("blocks.0.*",), ("blocks.*.mlp.*",))),
        },
        "optimizer": {
            "name": random.choice(("adamw", "adamw", "lion", "sgd", "muon", "adafactor")),
            "schedule": random.choice(("cosine", "wsd", "linear", "constant")),
            "decayed": random.choice(("matrices", "blocks", "all")),
            "sharded": random.random() < 0.3,
            "warmup_steps": random.randint(0, 3),
        },
        "loss_scale": {"enabled": random.random() < 0.3},
        "lora": {"rank": random.choice((0, 0, 0, 2))},
    }
    if random.random() < 0.2:
        sources = [{"folder": name, "weight": random.uniform(0.5, 2)} for name in ("a", "b")]
        tree["data"] = {"sources": sources, "pack": tree["data"]["pack"]}
    return tree


def _codecs(random: Random) -> dict[str, Any]:
    """Return the codecs of messages: at least one of the two is on."""
    boundary = random.choice([kind for kind in CodecKind if kind is not CodecKind.TOP_K])
    of_sums = [kind for kind in CodecKind if boundary is not CodecKind.NONE or kind is not boundary]
    return {
        "boundary": boundary.value,
        "gradients": random.choice(of_sums).value,
        "top_k_fraction": random.choice((0.05, 0.3)),
        "chunk_bytes": random.choice((256, 4096, 2**20)),
    }


def _uses_codec(config: Config, plan: Plan) -> bool:
    """Return whether a message of the plan has a codec."""
    has_boundary = config.comm.boundary is not CodecKind.NONE and plan.num_ranks > plan.num_replicas
    return has_boundary or (config.comm.gradients is not CodecKind.NONE and plan.num_replicas > 1)


def _model(random: Random) -> dict[str, Any]:
    kind = random.choice(("gpt", "gpt", "llama", "experts", "classes"))
    model: dict[str, Any] = {**_GPT, "tied": random.random() < 0.5}
    if kind == "llama":
        return {
            **_LLAMA,
            "tied": model["tied"],
            "window": random.choice((0, 4)),
            "qkv_bias": random.random() < 0.5,
            "qk_norm": random.random() < 0.3,
            "alternating": random.random() < 0.2,
        }
    model["dropout"] = random.choice((0.0, 0.0, 0.2))
    if kind == "experts":
        experts = {"experts": 4, "experts_per_token": random.choice((1, 2))}
        model |= {**experts, "balance_loss": 0.1, "z_loss": random.choice((0.0, 0.1))}
    if kind == "classes":
        model |= {"classes": 3, "causal": False, "tied": False}
    return model


def _even(random: Random) -> tuple[dict[str, Any], int]:
    stages, replicas = random.randint(1, 4), random.randint(1, 4)
    microbatch, chunks = random.randint(1, 2), random.choice((1, 1, 2))
    batch = replicas * microbatch * random.choice((1, 2, 3, 4, 8))
    plan = {"stages": stages, "replicas": replicas, "microbatch": microbatch}
    return ({**plan, "chunks": chunks} if chunks > 1 else plan), batch


def _uneven(random: Random, num_layers: int) -> tuple[dict[str, Any], int]:
    replicas = random.randint(1, 3)
    cuts = [_cut(random, num_layers) for _ in range(replicas)]
    microbatch = random.randint(1, 2)
    shares = [microbatch * random.randint(1, 5) for _ in range(replicas)]
    return {"cuts": cuts, "shares": shares, "microbatch": microbatch}, sum(shares)


def _cut(random: Random, num_layers: int) -> list[int]:
    num_stages = random.randint(1, min(3, num_layers))
    edges = sorted(random.sample(range(1, num_layers), num_stages - 1))
    return [b - a for a, b in zip((0, *edges), (*edges, num_layers), strict=True)]


def _verified(seeds: range, *, meshes: bool, codecs: bool) -> Iterator[dict[str, Any]]:
    """Yield a row for the plan of each seed."""
    import jax

    from jaxpipe.runtime.stage.compile_once import CompileOnce
    from jaxpipe.verify.certificate import compared, reference

    for seed in seeds:
        most_ranks = _MOST_DEVICES // 4 if meshes else 8
        config, plan, form = random_plan(
            Random(seed), most_ranks=most_ranks, meshes=meshes, codecs=codecs
        )
        certificate = compared(reference(config, plan, form), compiler=CompileOnce())
        largest = max(certificate.largest, key=lambda d: d.error, default=None)
        first = certificate.wrong[0] if certificate.wrong else None
        yield {
            "seed": seed,
            "ranks": plan.num_ranks,
            "schedule": plan.schedule_name,
            "optimizer": str(config.optimizer.name),
            **({"mesh": config.mesh.words.rpartition("= ")[2]} if meshes else {}),
            **(
                {"boundary": str(config.comm.boundary), "gradients": str(config.comm.gradients)}
                if codecs
                else {}
            ),
            "right": "yes" if certificate.is_proved else "no",
            "largest": float("nan") if largest is None else largest.error,
            "where": certificate.failure or ("" if first is None else f"{first}"),
        }
        jax.clear_caches()  # a process has room for some thousand executables


def main(
    count: tyro.conf.Positional[int],
    first: tyro.conf.Positional[int] = 0,
    *,
    meshes: bool = False,
    codecs: bool = False,
) -> None:
    """Verify some plans."""
    num_devices = _MOST_DEVICES if meshes else 1
    os.environ["XLA_FLAGS"] = quick_flags(os.environ.get("XLA_FLAGS", ""), num_devices=num_devices)
    os.environ.update(threads_of_devices(os.environ, num_devices=num_devices))
    _RESULTS.mkdir(exist_ok=True)
    name = "codecs" if codecs else "meshes" if meshes else "plans"
    for row in _verified(range(first, first + count), meshes=meshes, codecs=codecs):
        append_csv(row, _RESULTS / f"{name}.csv")
        if row["right"] != "yes":
            print(row, flush=True)


if __name__ == "__main__":
    tyro.cli(main)
