"""Adapters from PEFT's files: what PEFT computes of them, or a refusal that names the field."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.finetune.merge import merged_tensors
from jaxpipe.interchange import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    ExportForm,
    TunedFiles,
    read_adapters,
    write_adapter,
    write_model,
)
from jaxpipe.interchange.peft_fields import FILE, adapter_fields_of
from jaxpipe.models import ModelConfig
from tests.interchange.test_peft_adapter import GPT2, LORA, MODELS, reader, tensors_of
from tests.oracles.llamas import PHI3, QWEN2

KINDS: dict[str, ModelConfig] = {**MODELS, "phi3": PHI3}
PREFIX = "base_model.model."
LAYER = f"{PREFIX}model.layers"


def write_base(folder: Path, config: ModelConfig, *, kind: str | None = None) -> None:
    write_model(folder, config, reader(tensors_of(config, targets=())), ExportForm(kind=kind))


def write_files(folder: Path, tensors: dict[str, np.ndarray], **fields: Any) -> None:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / ADAPTER_WEIGHTS)
    (folder / ADAPTER_CONFIG).write_text(json.dumps({"peft_type": "LORA", **fields}))


def drawn(
    modules: dict[str, tuple[int, int, int]], *, dtype: Any = np.float32
) -> dict[str, np.ndarray]:
    """Return random A and B of modules of a rank, by their inputs and outputs."""
    source = np.random.default_rng(1)
    tensors: dict[str, np.ndarray] = {}
    for name, (rank, inputs, outputs) in modules.items():
        for leaf, shape in (("lora_A", (rank, inputs)), ("lora_B", (outputs, rank))):
            tensors[f"{LAYER}.{name}.{leaf}.weight"] = source.normal(size=shape).astype(dtype)
    return tensors


def merged(files: TunedFiles) -> dict[str, np.ndarray]:
    tensors = {tensor.name: tensor.array() for tensor in files.tensors}
    names = [name for name in tensors if not name.endswith((LORA_A, LORA_B))]
    return dict(merged_tensors(reader(tensors), tensors.keys(), files.lora)(names))


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("base")
    write_base(folder, replace(QWEN2, tied=False))
    return folder


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_is_read(kind: str, tmp_path: Path) -> None:
    config = KINDS[kind]
    tensors = tensors_of(config, targets=(".attention.", ".mlp.", ".moe."))
    form = ExportForm(kind=kind)
    write_base(tmp_path / "base", config, kind=kind)
    write_adapter(tmp_path / "adapter", config, LORA, reader(tensors), tensors, form=form)
    files = read_adapters(tmp_path / "adapter", tmp_path / "base")
    assert (files.model, files.replaced, files.dropout) == (config, (), 0)
    expected = merged_tensors(reader(tensors), tensors.keys(), LORA)
    for name, tensor in merged(files).items():
        np.testing.assert_allclose(tensor, expected([name])[name], rtol=1e-5, atol=1e-6)
    # Three products are one of three times the rank there.
    assert files.lora.scale == LORA.scale
    assert files.lora.rank == (3 * LORA.rank if kind == "phi3" else LORA.rank)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_ranks_factors_and_layers_are_those_of_peft(
    base: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.mktemp("adapter")
    ends = {"self_attn.q_proj": (16, 16), "self_attn.k_proj": (16, 8), "mlp.down_proj": (24, 16)}
    ours = {"q_proj": "attention.query", "k_proj": "attention.key", "down_proj": "mlp.down"}
    layers = data.draw(st.sampled_from([None, [0], [1], [0, 1]]))
    ranks = data.draw(st.dictionaries(st.sampled_from(list(ours)), st.integers(1, 4), max_size=2))
    alphas = data.draw(st.dictionaries(st.sampled_from(list(ours)), st.integers(1, 9), max_size=2))
    is_stabilized = data.draw(st.booleans())
    modules = {
        f"{layer}.{end}": (ranks.get(end.partition(".")[2], 3), *sizes)
        for layer in layers or (0, 1)
        for end, sizes in ends.items()
    }
    tensors = drawn(modules)
    write_files(
        folder,
        tensors,
        r=3,
        lora_alpha=5,
        target_modules=list(ours),
        layers_to_transform=layers,
        rank_pattern=ranks,
        alpha_pattern=alphas,
        use_rslora=is_stabilized,
    )
    files = read_adapters(folder, base)
    plain = tensors_of(replace(QWEN2, tied=False), targets=())
    for name, tensor in merged(files).items():
        expected = plain[name].astype(np.float64)
        for end, our in ours.items():
            for layer in range(2):
                module = next(m for m in ends if m.endswith(end))
                key = f"{LAYER}.{layer}.{module}"
                if name == f"blocks.{layer}.{our}.kernel" and f"{layer}.{module}" in modules:
                    rank = ranks.get(end, 3)
                    scale = alphas.get(end, 5) / (rank**0.5 if is_stabilized else rank)
                    b, a = (tensors[f"{key}.lora_{leaf}.weight"] for leaf in "BA")
                    expected = expected + scale * (b @ a).T
        np.testing.assert_allclose(tensor, expected, rtol=1e-5, atol=1e-5, err_msg=name)


def test_what_fills_up_adapters_has_no_gradient(base: Path, tmp_path: Path) -> None:
    """Zeros in a column of A and a row of B: the gradient of each is a product with the other."""
    modules = {"0.self_attn.q_proj": (2, 16, 16), "0.self_attn.o_proj": (3, 16, 16)}
    targets = r".*\.0\.self_attn\.(q|o)_proj"
    write_files(tmp_path, drawn(modules), r=3, target_modules=targets, rank_pattern={"q_proj": 2})
    tensors = {tensor.name: tensor.array() for tensor in read_adapters(tmp_path, base).tensors}
    kernel = "blocks.0.attention.query.kernel"
    a, b = tensors[kernel + LORA_A], tensors[kernel + LORA_B]
    assert not a[:, 2].any()
    assert not b[2].any()
    assert a[:, :2].all()
    assert b[:2].all()
    other = "blocks.1.attention.query.kernel"
    assert not tensors[other + LORA_A].any()
    assert not tensors[other + LORA_B].any()


def test_tensors_of_the_model_count_in_place_of_its_own(base: Path, tmp_path: Path) -> None:
    bias, head = np.full(16, 7, np.float32), np.full((19, 16), 5, np.float32)
    tensors = {
        **drawn({f"{layer}.self_attn.q_proj": (2, 16, 16) for layer in range(2)}),
        f"{LAYER}.1.self_attn.q_proj.base_layer.bias": bias,
        f"{PREFIX}lm_head.weight": head,
    }
    fields = {"r": 2, "target_modules": ["q_proj"], "bias": "lora_only"}
    write_files(tmp_path, tensors, modules_to_save=["lm_head"], lora_dropout=0.1, **fields)
    files = read_adapters(tmp_path, base)
    assert files.replaced == ("lm_head.weight", "model.layers.1.self_attn.q_proj.bias")
    assert files.dropout == 0.1
    arrays = merged(files)
    np.testing.assert_array_equal(arrays["head.kernel"], head)
    np.testing.assert_array_equal(arrays["blocks.1.attention.query.bias"], bias)
    assert not np.array_equal(arrays["blocks.0.attention.query.bias"], bias)
    write_files(tmp_path, tensors, modules_to_save=["lm_head", "norm"], **fields)
    with pytest.raises(CheckpointError, match=r"^`modules_to_save` .* needs .*norm"):
        read_adapters(tmp_path, base)


def test_a_tied_table_is_not_trained_apart(tmp_path: Path) -> None:
    write_base(tmp_path / "base", QWEN2)
    tensors = drawn({f"{layer}.self_attn.q_proj": (2, 16, 16) for layer in range(2)})
    tensors[f"{PREFIX}lm_head.weight"] = np.ones((19, 16), np.float32)
    fields = {"r": 2, "target_modules": ["q_proj"]}
    write_files(tmp_path / "adapter", tensors, modules_to_save=["lm_head"], **fields)
    with pytest.raises(ConfigError, match=r"^`modules_to_save` .* has lm_head, and `tie_word_emb"):
        read_adapters(tmp_path / "adapter", tmp_path / "base")
    write_files(tmp_path / "adapter", tensors, **fields)
    with pytest.raises(CheckpointError, match=r"`tie_word_embeddings` .* differs"):
        read_adapters(tmp_path / "adapter", tmp_path / "base")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"target_modules": ["absent"]}, "^`target_modules` .* matches none"),
        ({"target_modules": ["q_proj", "mlp"]}, r"^`target_modules` .* matches model\.layers\.0\."),
        ({"target_modules": ["q_proj", "lm_head"]}, "^`target_modules` .* matches lm_head"),
        ({"target_modules": "("}, "^`target_modules` must be a regular expression"),
        ({"target_modules": None}, "^`target_modules` must be stated"),
        ({"target_modules": [3]}, "^`target_modules` .* a list of names"),
        ({"target_modules": ["q_proj", "v_proj"]}, "^`target_modules` .* the files lack"),
        ({"exclude_modules": r".*\.0\..*"}, "layers.0.* must be an adapter that"),
        ({"layers_to_transform": [1]}, "layers.0.* must be an adapter that"),
        ({"layers_to_transform": ["1"]}, "^`layers_to_transform` .* whole numbers"),
        ({"target_modules": "all-linear", "layers_to_transform": 1}, "^`layers_to_transform` and"),
        ({"target_modules": "all-linear", "layers_to_transform": []}, "^`layers_to_transform` and"),
        ({"layers_pattern": ["layers"]}, "^`layers_pattern` .* must come with"),
        ({"rank_pattern": {"q_proj": 3}}, r"lora_A.weight` has shape \[2, 16\]"),
        ({"rank_pattern": {"(": 3}}, "^`rank_pattern` must be a regular expression"),
        ({"rank_pattern": {"q_proj": 99}}, "^`rank_pattern` .* at most 16"),
        ({"r": 0}, "^`r` in `adapter_config.json` must be from 1"),
        ({"r": 17}, "^`r` in `adapter_config.json` must be at most 16"),
        ({"lora_alpha": -1}, "^`lora_alpha` .* must be above 0"),
        ({"modules_to_save": ["q_proj"]}, "^`target_modules` .* matches none"),
        ({"modules_to_save": ["_proj"]}, "^`modules_to_save` .* no module with adapters"),
        ({"modules_to_save": ["n.*m"]}, "must be the name of a module"),
        ({"init_lora_weights": "pissa"}, "^`init_lora_weights` .* 'pissa'"),
        ({"task_type": "SEQ_CLS"}, "^`task_type`"),
        ({"news": 1}, "^`news` in `adapter_config.json` .* `--ignore news`"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_field(
    base: Path, tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    tensors = drawn({f"{layer}.self_attn.q_proj": (2, 16, 16) for layer in range(2)})
    write_files(tmp_path, tensors, **{"r": 2, "target_modules": ["q_proj"], **fields})
    with pytest.raises((ConfigError, CheckpointError), match=words):
        merged(read_adapters(tmp_path, base))


@pytest.mark.parametrize("name", [name for name in FILE.only if name.startswith("use_")])
def test_other_methods_are_refused_by_name(name: str) -> None:
    with pytest.raises(ConfigError, match=f"^`{name}` in `adapter_config.json` is True"):
        adapter_fields_of({"peft_type": "LORA", "target_modules": ["x"], name: True})


@pytest.mark.parametrize("peft_type", ["ADALORA", "IA3", None, 3])
def test_other_kinds_of_adapters_are_refused(peft_type: Any) -> None:
    with pytest.raises(ConfigError, match=r"^`peft_type` in `adapter_config\.json` is"):
        adapter_fields_of({"peft_type": peft_type, "target_modules": ["x"], "feedforward": 1})


def test_fields_that_change_nothing_change_nothing() -> None:
    fields = {"peft_type": "LORA", "target_modules": ["x"], "r": 2}
    plain = adapter_fields_of(fields)
    for name in FILE.inert - {"lora_dropout"}:
        assert adapter_fields_of({**fields, name: "anything"}) == plain
    assert adapter_fields_of({**fields, "news": 1}, ["news"]) == plain
    with pytest.raises(ConfigError, match="`--ignore` r must be a field that jaxpipe does not"):
        adapter_fields_of(fields, ["r"])


def test_a_pattern_that_never_ends_is_refused(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jaxpipe.interchange.name_patterns._DEADLINE_S", 0.5)
    write_files(tmp_path, drawn({}) or {"x": np.ones(1)}, target_modules=r"(\w*\.?)*!")
    with pytest.raises(ConfigError, match=r"^`target_modules` must be done .* list the names"):
        read_adapters(tmp_path, base)


def test_biases_of_a_gpt2_are_those_beside_its_adapters(tmp_path: Path) -> None:
    tensors = tensors_of(GPT2, targets=(".attention.",))
    write_base(tmp_path / "base", GPT2)
    write_adapter(tmp_path / "adapter", GPT2, LORA, reader(tensors), tensors)
    path = tmp_path / "adapter" / ADAPTER_WEIGHTS
    bias = np.arange(24, dtype=np.float32)
    key = f"{PREFIX}transformer.h.1.attn.c_attn.base_layer.bias"
    save_file({**load_file(path), key: bias}, path)
    files = read_adapters(tmp_path / "adapter", tmp_path / "base")
    assert files.lora == replace(
        LORA, targets=("attention.project", "attention.qkv"), alpha=LORA.scale * LORA.rank
    )
    np.testing.assert_array_equal(merged(files)["blocks.1.attention.qkv.bias"], bias)


def test_the_configuration_of_adapters_has_a_default() -> None:
    assert TunedFiles(model=GPT2, tensors=iter(())).lora == LoraConfig()
