"""Configurations at random: valid, nearly valid and wrong ones, over every field of every section.

::

    base ── one of few valid configurations: texts, labels, pictures, experts, Llama, a free plan
     │
     └─► 0 to 6 fields, each with a value that is right in some company ─► configuration

Two fields of a section or of different ones meet in each example: the law of `test_verdict.py` is
about their pairs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf, nan
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st

from jaxpipe.collective import AllReduceKind, CodecKind, CodecLimit
from jaxpipe.models.gpt_config import DTYPE_BYTES, GptConfig
from jaxpipe.models.llama_config import Activation, LlamaConfig
from jaxpipe.models.moe.routing import Dispatch
from jaxpipe.models.rope_scaling import RopeScaling
from jaxpipe.plan.plan_config import Replan
from jaxpipe.runtime.config import LinkDetail, Loop
from jaxpipe.runtime.data import Labelled, prepare_labelled
from jaxpipe.runtime.run_config import ComputeKind, MatmulPrecision, Survival, TransportKind
from jaxpipe.runtime.stage.optimizer_config import Decayed, OptimizerName, Schedule
from jaxpipe.schedule import Remat, ScheduleKind
from tests.runtime.training import Tree, tiny_tree, write_dataset

_SWITCH = [False, True]
_MANY = 10**6
_WAITS = [60.0, 1e9]
KINDS = (GptConfig, LlamaConfig)

RIGHT: Mapping[str, list[Any]] = {
    "run.seed": [0, 2**32 - 1],
    "run.timeout_s": _WAITS,
    "run.startup_timeout_s": _WAITS,
    "run.answer_s": _WAITS,
    "run.interface": ["lo", "10.0.0.0/24,eth0"],
    "run.hang_s": _WAITS,
    "run.transport": list(TransportKind),
    "run.keep_warm": _SWITCH,
    "run.link_scale": [1.0, 0.5],
    "run.compute": list(ComputeKind),
    "run.matmul_precision": list(MatmulPrecision),
    "run.trackers": [[], ["tensorboard"]],
    "run.project": ["", "a project"],
    "run.pictures": _SWITCH,
    "run.survive": list(Survival),
    "run.recover_s": _WAITS,
    "run.change_every": [1, 1000],
    "data.pack": _SWITCH,
    "model.num_layers": [1, 2, 3, 4, 6],
    "model.dim": [8, 16, 24],
    "model.num_heads": [1, 2, 3, 4],
    "model.num_kv_heads": [1, 2],
    "model.head_width": [0, 4, 8],
    "model.hidden": [8, 17],
    "model.sequence": [1, 2, 5, 8, 10, 16],
    "model.vocabulary": [256, 300],
    "model.tied": _SWITCH,
    "model.dropout": [0.0, 0.1],
    "model.param_dtype": list(DTYPE_BYTES),
    "model.compute_dtype": list(DTYPE_BYTES),
    "model.attention": ["auto", "product"],
    "model.logits_bytes": [1, 4096, 2**40],
    "model.causal": _SWITCH,
    "model.classes": [0, 2, 3],
    "model.patch": [0, 2, 3],
    "model.channels": [1, 3],
    "model.experts": [0, 1, 2, 3],
    "model.experts_per_token": [1, 2],
    "model.capacity_factor": [0.1, 1.0, 1.25, 1e3],
    "model.normalised_gates": _SWITCH,
    "model.balance_loss": [0.0, 0.01],
    "model.z_loss": [0.0, 0.01],
    "model.dispatch": list(Dispatch),
    "model.routing_groups": [0, 1, 2, 3],
    "model.bottlenecks": [[], [[1, 4]], [[1, 2], [2, 1]]],
    "model.activation": list(Activation),
    "model.norm_epsilon": [1e-5, 0.0],
    "model.norm_offset": _SWITCH,
    "model.pre_norms": _SWITCH,
    "model.post_norms": _SWITCH,
    "model.qk_norm": _SWITCH,
    "model.wide_qk_norm": _SWITCH,
    "model.qkv_bias": _SWITCH,
    "model.project_bias": _SWITCH,
    "model.mlp_bias": _SWITCH,
    "model.scaled_embedding": _SWITCH,
    "model.embedding_factor": [1.0, 12.0],
    "model.residual_factor": [1.0, 0.25],
    "model.logits_divisor": [1.0, 8.0],
    "model.window": [0, 1, 4, 100],
    "model.alternating": _SWITCH,
    "model.period": [2, 3],
    "model.full_layers": [[], [0], [1, 0]],
    "model.local_base": [0.0, 100.0],
    "model.unturned": _SWITCH,
    "model.attention_softcap": [0.0, 50.0],
    "model.final_softcap": [0.0, 30.0],
    "model.query_scale": [0.0, 16.0],
    "model.rotary_width": [0, 2],
    "model.rope_base": [10_000.0, 2.0],
    # LongRoPE has as many divisors as a head has pairs.
    "model.rope_scaling": sorted(set(RopeScaling) - {RopeScaling.LONGROPE}),
    "model.rope_factor": [1.0, 8.0],
    "model.rope_low": [1.0, 4.0],
    "model.rope_high": [4.0, 1.0],
    "model.rope_sequence": [8192, 4],
    "model.rope_magnitude": [0.0, 2.0],
    "model.rope_truncate": _SWITCH,
    "model.rope_short": [[]],
    "model.rope_long": [[]],
    "plan.cluster": ["laptop", "two-region", "case3-universities", "this-machine:devices=4"],
    "plan.devices": [[], ["here-0:0", "here-0:2", "here-0:1", "here-0:3"]],
    "plan.stages": [1, 2, 3, 4, "free"],
    "plan.replicas": [1, 2, 3, 4, "free"],
    "plan.microbatch": [1, 2, 3, 4, "free"],
    "plan.schedule": [*ScheduleKind, "free"],
    "plan.cut": [[1, 2], [3], [2, 1]],
    "plan.cuts": [[[1, 2], [3]], [[1, 2], [2, 1]], [[1, 2]], [[3], [3]]],
    "plan.shares": [[4, 4], [6, 2], [5, 3], [8]],
    "plan.warmup": [[2, 1], [1, 2], [1]],
    "plan.boundaries": [["int8"], ["none"], ["bf16", "none"], "free"],
    "plan.chunks": [1, 2, 3, "free"],
    "plan.file": [""],
    "plan.all_reduce": [*AllReduceKind, "free"],
    "plan.codecs": list(CodecLimit),
    "plan.replan": list(Replan),
    "plan.drift_factor": [2.0],
    "plan.drift_steps": [1, 20],
    "train.steps": [1, 2, 3, 4],
    "train.batch": [1, 3, 4, 6, 8, 12],
    "train.sequence": [1, 2, 5, 8, 16],
    "train.remat": [*Remat, "free"],
    "train.loop": list(Loop),
    "train.log_every": [1],
    "train.eval_every": [0, 1, 2],
    "train.eval_batches": [None, 1, 2],
    "train.frozen": [["embed.*"], ["blocks.[0-0].*"], ["blocks.*"], ["head.*", "embed.*"]],
    "comm.boundary": list(CodecKind),
    "comm.gradients": list(CodecKind),
    "comm.top_k_fraction": [1e-9, 0.5, 1.0],
    "comm.chunk_bytes": [512, 2**20],
    "mesh.data": [1, 2],
    "mesh.context": [1, 2],
    "mesh.tensor": [1, 2, 4],
    "mesh.sharded": _SWITCH,
    "mesh.sequence_parallel": _SWITCH,
    "outer.islands": [0, 1, 2, 3],
    "outer.every": [1, 2, 4],
    "outer.learning_rate": [0.7],
    "outer.momentum": [0.9, 0.0],
    "outer.fragments": [1, 2, 3],
    "outer.delay": [0, 1, 2],
    "outer.local_fraction": [0.0, 0.5],
    "outer.eager": _SWITCH,
    "outer.codec": list(CodecKind),
    "outer.top_k_fraction": [0.01, 1.0],
    "quorum.island": [0],
    "quorum.islands": [1, 2, 1024],
    "quorum.every": [1, 30],
    "quorum.least": [1],
    "quorum.grace_s": [0.0, 5.0],
    "quorum.discount": [0.0, 0.5, 1.0],
    "quorum.learning_rate": [0.7],
    "quorum.momentum": [0.0, 0.9],
    "quorum.codec": [kind for kind in CodecKind if not kind.facts.needs_feedback],
    "quorum.timeout_s": [1.0, 600.0],
    "lora.rank": [0, 1, 2],
    "lora.alpha": [1.0, 16.0],
    "lora.targets": [["attention.*"], ["mlp.*"], ["*"]],
    "optimizer.name": list(OptimizerName),
    "optimizer.schedule": list(Schedule),
    "optimizer.decay_fraction": [0.2, 1.0],
    "optimizer.learning_rate": [1e-3, 1e-38],
    "optimizer.warmup_steps": [0, 1, _MANY],
    "optimizer.final_fraction": [0.0, 1.0],
    "optimizer.beta1": [0.0, 0.9],
    "optimizer.beta2": [0.0, 0.95],
    "optimizer.epsilon": [1e-8, 1.0],
    "optimizer.weight_decay": [0.0, 0.1],
    "optimizer.decayed": list(Decayed),
    "optimizer.clip_norm": [1.0, 1e-30],
    "optimizer.sharded": _SWITCH,
    "optimizer.master_weights": _SWITCH,
    "loss_scale.enabled": _SWITCH,
    "loss_scale.initial": [1.0, 2.0**16],
    "loss_scale.factor": [2.0],
    "loss_scale.growth_steps": [1],
    "loss_scale.largest": [1.0, 2.0**24],
    "checkpoint.every": [1, 2],
    "checkpoint.keep": [1],
    "checkpoint.give_up_after": [0, 5],
    "checkpoint.folder": ["memory://somewhere/else"],
    "trace.steps": [1, _MANY],
    "trace.links": list(LinkDetail),
    "trace.links_every": [1],
    "sample.prompt": ["", "The "],
    "sample.tokens": [0, 3],
    "sample.temperature": [0.0, 0.8],
    "paced.message_scale": [1e-3],
    "paced.time_scale": [1e-3],
    "paced.tflops": [1.0],
    "paced.ideal": _SWITCH,
}
"""Values of each field that are right in some company."""

WRONG: Mapping[str, list[Any]] = {
    "run.seed": [2**32, -1, 0.5],
    "run.timeout_s": [0.0, "long"],
    "run.startup_timeout_s": [0.0],
    "run.answer_s": [0.0],
    "run.interface": ["a b"],
    "run.hang_s": [0.0],
    "run.transport": ["tcp"],
    "run.link_scale": [0.0],
    "run.trackers": [["tensorboard", "tensorboard"], ["nobody"]],
    "run.recover_s": [0.0],
    "run.change_every": [0],
    "data.source": ["an unknown key"],
    "model.num_layers": [0],
    "model.dim": [0, 18],
    "model.num_heads": [0],
    "model.num_kv_heads": [0],
    "model.head_width": [5],
    "model.hidden": [0],
    "model.sequence": [0],
    "model.vocabulary": [1, 0],
    "model.dropout": [1.0],
    "model.param_dtype": ["float64"],
    "model.compute_dtype": ["float64"],
    "model.attention": ["flash"],
    "model.logits_bytes": [0],
    "model.classes": [1, -1],
    "model.channels": [0],
    "model.experts": [-1],
    "model.experts_per_token": [0, 5],
    "model.capacity_factor": [0.0],
    "model.balance_loss": [-1.0],
    "model.z_loss": [-1.0],
    "model.routing_groups": [-1],
    "model.bottlenecks": [[[0, 4]], [[1, 0]]],
    "model.activation": ["relu"],
    "model.norm_epsilon": [-1.0],
    "model.window": [-1],
    "model.attention_softcap": [-1.0],
    "model.final_softcap": [-1.0],
    "model.query_scale": [-1.0],
    "model.rope_base": [1.0],
    "model.rope_scaling": ["su"],
    "model.rope_short": [[1.0]],
    "model.rope_long": [[1.0]],
    "model.rotary_width": [3],
    "model.rope_magnitude": [-1.0],
    "model.embedding_factor": [0.0],
    "model.residual_factor": [0.0],
    "model.logits_divisor": [0.0],
    "model.rope_factor": [0.5],
    "model.rope_low": [0.0],
    "model.rope_sequence": [0],
    "model.preset": ["nothing"],
    "plan.cluster": ["nowhere", "this-machine:devices=4,memory_gib=0.0001"],
    "plan.devices": [["here0/0"], ["here-0:0", "here-0:0"], ["here-0:0"]],
    "plan.stages": [0, _MANY],
    "plan.replicas": [0, _MANY],
    "plan.microbatch": [0, _MANY],
    "plan.cut": [[], [3, 0], [2, 2]],
    "plan.cuts": [[[]], [[2, 2]]],
    "plan.shares": [[], [8, 0]],
    "plan.warmup": [[], [9, 1]],
    "plan.boundaries": [[], ["top_k"]],
    "plan.chunks": [0, 7],
    "plan.file": ["plan.toml"],
    "plan.schedule_file": ["schedule.csv"],
    "plan.search_s": [0.0],
    "plan.drift_factor": [1.0],
    "plan.drift_steps": [0],
    "train.steps": [0, 2**31],
    "train.batch": [0, _MANY],
    "train.sequence": [0, 32],
    "train.log_every": [0],
    "train.eval_every": [-1],
    "train.eval_batches": [0, _MANY],
    "train.frozen": [["*"], ["nothing.*"], [""]],
    "comm.boundary": ["top_k"],
    "comm.top_k_fraction": [0.0],
    "comm.chunk_bytes": [0, 1],
    "mesh.data": [0],
    "outer.learning_rate": [0.0],
    "outer.momentum": [1.0],
    "outer.local_fraction": [1.0],
    "outer.top_k_fraction": [0.0],
    "lora.rank": [_MANY, 1000],
    "lora.alpha": [0.0],
    "lora.targets": [["nothing"], []],
    "optimizer.decay_fraction": [0.0],
    "optimizer.learning_rate": [0.0],
    "optimizer.warmup_steps": [-1],
    "optimizer.final_fraction": [2.0],
    "optimizer.beta1": [1.0],
    "optimizer.beta2": [1.0],
    "optimizer.epsilon": [0.0],
    "optimizer.weight_decay": [-1.0],
    "optimizer.clip_norm": [0.0],
    "loss_scale.initial": [2.0**30],
    "loss_scale.factor": [1.0],
    "loss_scale.growth_steps": [0],
    "checkpoint.every": [0],
    "checkpoint.keep": [0],
    "checkpoint.give_up_after": [-1],
    "checkpoint.folder": ["nonsense", "nothing://a/b"],
    "trace.steps": [0],
    "trace.links_every": [0],
    "sample.tokens": [-1],
    "sample.temperature": [-1.0],
    "paced.message_scale": [0.0],
    "paced.time_scale": [0.0],
    "paced.profile": ["nowhere.toml"],
    "paced.profile_of": [["A100=nowhere.toml"], ["nonsense"]],
    "paced.tflops": [0.0],
}
"""Values that no company makes right, or almost none."""

FIXED = {
    "run.folder": "each example has its own",
    "data.folder": "it is that of the base",
    "data.sources": "a base has it",
    "train.epochs": "`train.steps` are drawn, whose place it takes",
    "plan.search_s": "a search would take longer than the law may",
    "model.family": "it is that of the base",
    "quorum.server": "a server would have to run beside",
}
"""Fields that are not drawn, each with the reason."""


@dataclass(frozen=True, slots=True)
class Bases:
    """Valid configurations by name, whose datasets are in one folder."""

    trees: Mapping[str, Mapping[str, Mapping[str, Any]]]

    @classmethod
    def in_folder(cls, folder: Path) -> "Bases":
        """Prepare the datasets of all of them."""
        text, other = folder / "text", folder / "other"
        for place in (text, other):
            place.mkdir()
        data = write_dataset(text)
        labels = {"classes": 2, "causal": False, "tied": False, "sequence": 5}
        llama = {"family": "llama", "num_kv_heads": 1, "hidden": 24}
        mixture = [{"folder": str(data)}, {"folder": str(write_dataset(other)), "weight": 2.0}]
        trees: dict[str, dict[str, dict[str, Any]]] = {
            "text": {},
            "one rank": {"plan": {"stages": 1, "replicas": 1}},
            "llama": {"model": llama},
            "experts": {"model": {"experts": 2}},
            "labels": {"model": labels, "data": {"folder": _labels(folder, "labels", 5)}},
            "pictures": {
                "model": {**labels, "patch": 2, "channels": 1},
                "data": {"folder": _labels(folder, "pictures", 4, 4, 1)},
            },
            "mixture": {"data": {"sources": mixture}},
            "free plan": {
                "plan": {
                    "cluster": "this-machine:devices=4",
                    **dict.fromkeys(("stages", "replicas", "microbatch", "schedule"), "free"),
                    "search_s": 1e-3,
                },
                "paced": {"tflops": 1.0},
            },
        }
        return cls({name: tiny_tree(Path("run"), data, **tree) for name, tree in trees.items()})


def _labels(folder: Path, name: str, *shape: int) -> str:
    samples = Labelled(
        inputs=np.zeros((40, *shape), np.uint8),
        labels=(np.arange(40) % 2).astype(np.uint8),
        classes=("even", "odd"),
        source="numbers",
    )
    prepare_labelled(samples, folder / name, eval_fraction=0.5)
    return str(folder / name)


@st.composite
def random_settings(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """Draw the name of a base, and up to 6 fields with values, of which one may be wrong.

    A field of another family of models is wrong as well.
    """
    name = draw(st.sampled_from(NAMES))
    known = [path for path in sorted(RIGHT) if path not in _OF_OTHERS[name == "llama"]]
    paths = draw(st.lists(st.sampled_from(known), max_size=6, unique=True))
    paths = [*dict.fromkeys(other for path in paths for other in (path, *_company(path)))]
    fields = {path: draw(st.sampled_from(RIGHT[path])) for path in paths}
    if draw(st.integers(0, 4)) == 0:
        path = draw(st.sampled_from(sorted(WRONG)))
        fields[path] = draw(st.sampled_from(WRONG[path]))
    return name, fields


ABSURD: tuple[Any, ...] = (
    *(0, -1, 1, 3, 10**9, 10**12, 2**63, -(2**70)),
    *(0.0, -0.0, 0.5, 1e-300, 1 - 1e-12, 1e12, 1e308, inf, -inf, nan),
    *("", "x", "a\0b", "\u2028", "x" * 5000, True, False),
    *([], [0], [1], [2**63], [[]], [[1, 1]], [["x"]], ["x"], {}, {"x": 1}),
)
"""Values of all types, which a field refuses by its name, or takes and obeys."""


def _company(path: str) -> tuple[str, ...]:
    """Return the fields without which another one is refused, whatever its value."""
    section, _, field = path.partition(".")
    if section == "outer":
        return ("outer.islands",)
    return ("run.transport",) if field == "link_scale" else ()


NAMES = ("text", "one rank", "llama", "experts", "labels", "pictures", "mixture", "free plan")
_GPT, _LLAMA = ({f"model.{field.name}" for field in fields(kind)} for kind in KINDS)
_OF_OTHERS = _LLAMA - _GPT, _GPT - _LLAMA


def tree_of(bases: Bases, name: str, fields: Mapping[str, Any], *, folder: Path) -> Tree:
    """Return a configuration: a base with some fields changed, in a folder of its own."""
    base = bases.trees[name]
    tree: Tree = {section: dict(values) for section, values in base.items()}
    for path, value in fields.items():
        section, field = path.split(".")
        tree.setdefault(section, {})[field] = value
    tree["run"]["folder"] = str(folder)
    if "cuts" in tree["plan"]:
        tree["plan"] = {k: v for k, v in tree["plan"].items() if k not in ("stages", "replicas")}
    if "sources" in tree["data"]:
        tree["data"].pop("folder", None)
    return tree
