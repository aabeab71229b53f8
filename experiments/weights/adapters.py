"""Compare what imported adapters compute with PEFT: random configurations of LoRA.

    python -m experiments.weights.adapters --python PYTHON [--path FOLDER] [--count 300]

PYTHON and FOLDER are as for `experiments.weights.run`; PEFT is there, too. Each case is a small
model of an architecture and random fields of PEFT's `LoraConfig`, some of which are changed in the
file after it is written. jaxpipe reads model and adapters, or refuses them; what it accepts must
have the logits of PEFT: merged, and with what fills up adapters of a lower rank.
"""

import json
import tempfile
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any, Final

import tyro

from experiments.weights.mutations import small_fields
from experiments.weights.run import answer_of, asked, logits_of, outcome_of, theirs, write_rows
from jaxpipe.errors import UserError
from jaxpipe.finetune.merge import merged_tensors
from jaxpipe.interchange import read_adapters
from jaxpipe.interchange.architectures import ARCHITECTURES

_LLAMA: Final = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
_MIXTRAL: Final = (*_LLAMA[:4], "w1", "w2", "w3")
_PHI3: Final = ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")
_GPT2: Final = ("c_attn", "attn.c_proj", "mlp.c_proj", "c_fc")
TOLERANCE: Final = 1e-5


def drawn(kind: str, random: Random) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the fields of a model, of its adapters, and those changed in their file."""
    modules = {"gpt2": _GPT2, "phi3": _PHI3, "mixtral": _MIXTRAL}.get(kind, _LLAMA)
    model = {**small_fields(kind), "tie_word_embeddings": random.random() < 0.3}
    if kind != "gpt2" and "attention_bias" in ARCHITECTURES[kind].computed:
        model["attention_bias"] = random.random() < 0.4
    adapter: dict[str, Any] = {
        "r": random.choice((1, 2, 3, 4)),
        "lora_alpha": random.choice((1, 2, 16, 3.5)),
        "target_modules": _targets(modules, random),
    }
    pool = _fields(kind, modules, random)
    for name in random.sample(sorted(pool), random.randint(0, 4)):
        adapter[name] = pool[name]
    changed = {}
    if random.random() < 0.3:
        other = {**pool, "r": 2, "lora_alpha": 5, "target_modules": _targets(modules, random)}
        name = random.choice([*sorted(other), "peft_version", "unknown", "lora_dropout"])
        changed[name] = other.get(name, 0.1)
    return model, adapter, changed


def _targets(modules: tuple[str, ...], random: Random) -> Any:
    names = random.sample(modules, random.randint(1, len(modules)))
    joined = "|".join(names)
    return random.choice(
        (
            *[names] * 9,
            "all-linear",
            rf".*\.({joined})",
            rf"(?:model|transformer)\.(?:layers|h)\.[\d]{{1,}}\..*?(?:{joined})",
            rf".*\.1\..*({joined})",
            [*names, "lm_head"],
            ["embed_tokens", *names],
            ["mlp"],
            "(.*",
            "absent",
        )
    )


def _fields(kind: str, modules: tuple[str, ...], random: Random) -> dict[str, Any]:
    one, two = random.choice(modules), random.choice(modules)
    ends = {"gpt2": ("wte", "ln_f", "ln_1")}.get(kind, ("embed_tokens", "norm", "input_layernorm"))
    return {
        "use_rslora": True,
        "rank_pattern": random.choice(({one: 2}, {one: 1, two: 3}, {rf".*\.0\..*{one}": 2})),
        "alpha_pattern": random.choice(({one: 7}, {one: 2, rf"1\..*\.{two}": 9}, {"x|" + one: 4})),
        "modules_to_save": random.choice((["lm_head"], [ends[0]], [*ends], [ends[1], "lm_head"])),
        "bias": random.choice(("none", "all", "lora_only")),
        "lora_dropout": random.choice((0.0, 0.3)),
        "fan_in_fan_out": random.choice((True, False)),
        "layers_to_transform": random.choice((0, [1], [0, 1], [], [5])),
        "layers_pattern": random.choice(("layers", ["h"], [])),
        "exclude_modules": random.choice(([one], rf".*\.0\..*{one}", [two, "lm_head"])),
        "use_dora": random.choice((True, False, False)),
        "lora_bias": random.choice((True, False, False)),
        "init_lora_weights": random.choice((True, True, False, "gaussian", "olora", "pissa")),
        "ensure_weight_tying": random.choice((True, False, False)),
        "trainable_token_indices": random.choice((None, None, [1, 2])),
        "layer_replication": random.choice((None, None, [[0, 2], [1, 2]])),
    }


def main(
    python: Path,
    path: Path | None = None,
    count: int = 300,
    seed: int = 0,
    kinds: tuple[str, ...] = (*ARCHITECTURES, "gpt2"),
) -> int:
    """Print and write the counts of outcomes; return 1 if logits differ."""
    outcomes: dict[str, Counter[str]] = {}
    largest: dict[str, float] = {}
    with theirs(python, path) as process, tempfile.TemporaryDirectory() as place:
        version = json.loads(answer_of(process))["transformers"]
        for number in range(count):
            kind = kinds[number % len(kinds)]
            model, adapter, changed = drawn(kind, Random(f"{kind} {seed} {number}"))
            folder, adapter_folder = Path(place) / f"{number}", Path(place) / f"{number}-adapter"
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(model))
            more = {"adapter": adapter, "changed": changed, "adapter_folder": str(adapter_folder)}
            answer = asked(process, folder, **more)
            ours, refusal = _ours(folder, adapter_folder)
            outcome, difference = outcome_of(ours, answer)
            outcomes.setdefault(kind, Counter())[outcome] += 1
            if outcome == "equal":
                largest[kind] = max(largest.get(kind, 0.0), difference)
            if outcome not in ("equal", "refused by both"):
                print(outcome, difference, kind, adapter, changed, flush=True)
                print("   ", refusal or answer.get("error"), flush=True)
    rows = [
        {
            "architecture": kind,
            "transformers": version,
            "cases": counts.total(),
            "equal": counts["equal"],
            "refused": counts["refused"],
            "refused_by_both": counts["refused by both"],
            "accepted_here_alone": counts["accepted here alone"],
            "different": counts["different"],
            "largest_difference": f"{largest.get(kind, 0.0):.1e}",
        }
        for kind, counts in outcomes.items()
    ]
    for row in rows:
        print(row)
    write_rows(f"adapters-{version.partition('.')[0]}.csv", rows)
    wrong = any(row["different"] or row["accepted_here_alone"] for row in rows)
    return int(wrong or max(largest.values(), default=0.0) > TOLERANCE)


def _ours(folder: Path, adapter_folder: Path) -> tuple[Any, str | None]:
    """Return the logits by jaxpipe, or why it refuses the files."""
    try:
        read = read_adapters(adapter_folder, folder)
        tensors = {tensor.name: tensor.array() for tensor in read.tensors}
    except UserError as error:
        return None, str(error)
    merge = merged_tensors(
        lambda names: {name: tensors[name] for name in names}, tensors.keys(), read.lora
    )
    names = [name for name in tensors if not name.endswith(("_lora_a", "_lora_b"))]
    return logits_of(read.model, dict(merge(names))), None


if __name__ == "__main__":
    raise SystemExit(tyro.cli(main))
