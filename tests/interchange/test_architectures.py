"""Each architecture of the table: there and back, an allow list of fields, conflicts refused."""

import json
from collections.abc import Callable, Iterable
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
from jaxpipe.interchange import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    ExportForm,
    config_of_gpt2,
    config_of_llama,
    gpt2_config_of,
    llama_config_of,
    llama_pairs,
    model_folder,
    read_model,
    write_adapter,
    write_model,
)
from jaxpipe.interchange.architectures import ARCHITECTURES
from jaxpipe.interchange.fields import INERT, ONLY
from jaxpipe.interchange.lacking_architectures import LACKING
from jaxpipe.models import GptConfig, LlamaConfig
from jaxpipe.runtime.checkpoint import StreamedTensor
from tests.oracles.llamas import (
    DYNAMIC,
    KINDS,
    MISTRAL,
    PHI3,
    PLAIN,
    RAGGED,
    SHORT,
    UNROUNDED,
    VARIANTS,
    YARN,
)

MODELS = {
    **{kind: config for kind, config in KINDS.items() if kind in ARCHITECTURES},
    **{kind: config for kind, config in VARIANTS.items() if kind in ARCHITECTURES},
}
every_kind = pytest.mark.parametrize("kind", ARCHITECTURES)


def tensors_of(config: LlamaConfig) -> dict[str, np.ndarray]:
    source = np.random.default_rng(0)
    return {
        pair.ours: source.normal(size=pair.shape).astype(np.float32) for pair in llama_pairs(config)
    }


def arrays(tensors: Iterable[StreamedTensor]) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.array() for tensor in tensors}


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, other[name], err_msg=name)


@pytest.mark.parametrize(
    ("kind", "config"), [*((kind, MODELS[kind]) for kind in ARCHITECTURES), *RAGGED.items()]
)
def test_there_and_back_is_the_same_architecture(
    kind: str, config: LlamaConfig, tmp_path: Path
) -> None:
    tensors = tensors_of(config)
    form = ExportForm(kind=kind)
    name = write_model(tmp_path, config, lambda names: {n: tensors[n] for n in names}, form)
    assert name == ARCHITECTURES[kind].model
    read, again = read_model(tmp_path)
    assert read == config
    assert_same(arrays(again), tensors)


def test_products_of_one_input_are_one_tensor_in_phi3(tmp_path: Path) -> None:
    tensors = tensors_of(PHI3)
    form = ExportForm(kind="phi3")
    write_model(tmp_path, PHI3, lambda names: {n: tensors[n] for n in names}, form)
    theirs = load_file(tmp_path / "model.safetensors")
    qkv = theirs["model.layers.1.self_attn.qkv_proj.weight"]
    rows = PHI3.query_width, PHI3.query_width + PHI3.kv_width
    np.testing.assert_array_equal(qkv[: rows[0]].T, tensors["blocks.1.attention.query.kernel"])
    np.testing.assert_array_equal(qkv[rows[1] :].T, tensors["blocks.1.attention.value.kernel"])
    gate_up = theirs["model.layers.0.mlp.gate_up_proj.weight"]
    np.testing.assert_array_equal(gate_up[PHI3.hidden :].T, tensors["blocks.0.mlp.up.kernel"])


@pytest.mark.parametrize(
    ("kind", "expert", "router"),
    [
        ("mixtral", "block_sparse_moe.experts.3.w3", "block_sparse_moe.gate"),
        ("qwen3_moe", "mlp.experts.3.up_proj", "mlp.gate"),
    ],
)
def test_experts_are_tensors_of_their_own(
    kind: str, expert: str, router: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "FILE_BYTES", 4000)  # parts of one of ours in several files
    config, tensors = MODELS[kind], tensors_of(MODELS[kind])
    form = ExportForm(kind=kind)
    write_model(tmp_path, config, lambda names: {n: tensors[n] for n in names}, form)
    files = json.loads((tmp_path / "model.safetensors.index.json").read_text())["weight_map"]
    theirs = {
        name: load_file(tmp_path / files[name])[name]
        for name in (f"model.layers.1.{part}.weight" for part in (expert, router))
    }
    up, gate = theirs.values()
    np.testing.assert_array_equal(up.T, tensors["blocks.1.moe.up"][3])
    np.testing.assert_array_equal(gate.T, tensors["blocks.1.moe.router"])
    assert all((tmp_path / file).stat().st_size < 8000 for file in files.values())
    assert_same(arrays(read_model(tmp_path)[1]), tensors)


def test_experts_and_routers_have_no_adapters_in_peft(tmp_path: Path) -> None:
    config = MODELS["qwen3_moe"]
    lora, tensors = LoraConfig(rank=1, targets=("*",)), tensors_of(config)
    for number in range(config.num_layers):
        name = f"blocks.{number}.moe.router"
        tensors[name + LORA_A] = np.ones((config.dim, 1), np.float32)
        tensors[name + LORA_B] = np.ones((1, config.experts), np.float32)
    with pytest.raises(ConfigError, match=r"`lora\.targets` .* matches moe\.router"):
        write_adapter(tmp_path, config, lora, lambda n: {m: tensors[m] for m in n}, tensors)
    assert not list(tmp_path.iterdir())


def test_a_model_of_several_architectures_is_written_as_it_was_read() -> None:
    assert llama_config_of(PLAIN)["model_type"] == "llama"
    assert llama_config_of(PLAIN, kind="mistral")["sliding_window"] is None
    assert llama_config_of(PLAIN, kind="phi3")["model_type"] == "phi3"
    assert llama_config_of(MISTRAL, kind="llama")["model_type"] == "mistral"


@every_kind
@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_a_field_that_is_not_known_is_refused_by_name(kind: str, data: st.DataObject) -> None:
    fields = llama_config_of(MODELS[kind], kind=kind)
    known = ARCHITECTURES[kind].known | INERT | ONLY.keys()
    letters = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
    name = data.draw(
        (letters | st.sampled_from(sorted(every_field()))).filter(lambda n: n not in known)
    )
    fields[name] = data.draw(st.none() | st.booleans() | st.integers() | st.just("x"))
    with pytest.raises(
        ConfigError, match=f"^`{name}` in `config.json` must be .* `--ignore {name}`"
    ):
        config_of_llama(fields)
    assert config_of_llama(fields, [name]) == MODELS[kind]


NUMBERS = (0, -1, 3, 7, 65_537, 10**12, 2**70, -0.5, 1e-300, 1e300, float("nan"), "x", [], True)


@pytest.mark.parametrize("number", NUMBERS)
@every_kind
def test_a_refused_number_is_named_as_in_the_file(kind: str, number: Any) -> None:
    fields = llama_config_of(MODELS[kind], kind=kind)
    scaling = fields.get("rope_scaling") or {}
    names = {*ARCHITECTURES[kind].computed, *ARCHITECTURES[kind].known, *scaling} - {"model_type"}
    for name in sorted(names - ARCHITECTURES[kind].inert):
        changed = {**fields, name: number}
        if name in scaling:
            changed = {**fields, "rope_scaling": {**scaling, name: number}}
        refusal = refusal_of(config_of_llama, changed)
        assert refusal is None or lead_of(refusal) in names, refusal
        assert refusal is None or f"`{name}`" in refusal, refusal
        assert refusal is None or "`config.json`" in refusal, refusal


def refusal_of(read: Callable[[dict[str, Any]], object], fields: dict[str, Any]) -> str | None:
    try:
        read(fields)
    except ConfigError as error:
        return str(error)
    return None


def lead_of(refusal: str) -> str:
    return refusal.removeprefix("`").partition("`")[0]


def test_a_number_that_is_computed_with_is_refused_as_it_stands_in_the_file() -> None:
    fields = llama_config_of(MODELS["granite"], kind="granite")
    # Scores are divided by the root of its inverse square.
    words = r"^`attention_multiplier` in `config\.json` is 1e-12: `query_scale` must be from 0 to "
    with pytest.raises(ConfigError, match=words):
        config_of_llama({**fields, "attention_multiplier": 1e-12})


@pytest.mark.parametrize("kind", ["llama", "gemma2", "gemma3_text", "smollm3", "gpt2"])
def test_too_many_layers_are_refused_before_they_are_counted(kind: str) -> None:
    if kind == "gpt2":
        config = GptConfig(num_layers=2, dim=12, num_heads=3, sequence=9, vocabulary=17)
        fields, read = {**gpt2_config_of(config), "n_layer": 10**12}, config_of_gpt2
    else:
        fields, read = llama_config_of(MODELS[kind], kind=kind), config_of_llama
        fields["num_hidden_layers"] = 10**12
        fields = {
            n: value for n, value in fields.items() if n not in ("layer_types", "no_rope_layers")
        }
    with pytest.raises(
        ConfigError, match=r"^`(n_layer|num_hidden_layers)` in .* to 65,536, not 10+$"
    ):
        read(fields)


@pytest.mark.parametrize("name", ["n_layer", "n_embd", "n_head", "n_positions", "vocab_size"])
@pytest.mark.parametrize("number", NUMBERS)
def test_a_refused_number_of_a_gpt2_is_named_as_in_the_file(name: str, number: Any) -> None:
    config = GptConfig(num_layers=2, dim=12, num_heads=3, sequence=9, vocabulary=17)
    refusal = refusal_of(config_of_gpt2, {**gpt2_config_of(config), name: number})
    assert refusal is None or lead_of(refusal).startswith(("n_", "vocab_size")), refusal
    assert refusal is None or f"`{name}`" in refusal, refusal


def every_field() -> set[str]:
    """Return the fields of all architectures: most belong to one alone."""
    return {name for record in ARCHITECTURES.values() for name in record.known}


@every_kind
@settings(max_examples=10, deadline=None)
@given(data=st.data())
def test_a_field_that_changes_nothing_changes_nothing(kind: str, data: st.DataObject) -> None:
    fields = llama_config_of(MODELS[kind], kind=kind)
    names = sorted(INERT | ARCHITECTURES[kind].inert)
    for name in data.draw(st.lists(st.sampled_from(names), max_size=5)):
        fields[name] = data.draw(st.none() | st.booleans() | st.integers() | st.just("x"))
    assert config_of_llama(fields) == MODELS[kind]


@pytest.mark.parametrize("name", ["hidden_size", "absent"])
def test_what_is_computed_or_absent_is_not_ignored(name: str) -> None:
    with pytest.raises(ConfigError, match=f"`--ignore` {name} must be"):
        config_of_llama(llama_config_of(PLAIN), [name])


def test_fields_of_a_gpt2_are_known_or_refused() -> None:
    config = GptConfig(num_layers=2, dim=12, num_heads=3, sequence=9, vocabulary=17)
    fields = gpt2_config_of(config)
    assert config_of_gpt2({**fields, "summary_type": "last", "n_ctx": 3}) == config
    with pytest.raises(ConfigError, match=r"^`rotary` in `config\.json` must be .* of gpt2"):
        config_of_gpt2({**fields, "rotary": True})
    assert config_of_gpt2({**fields, "rotary": True}, ["rotary"]) == config


@pytest.mark.parametrize("kind", LACKING)
def test_an_architecture_that_is_not_computed_says_what_is_missing(
    kind: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": kind}))
    words = rf"`model_type` in `config.json` is '{kind}', .* which lacks {LACKING[kind]}"
    with pytest.raises(ConfigError, match=words):
        read_model(tmp_path)


def test_missing_fields_are_those_of_the_class() -> None:
    fields = llama_config_of(MISTRAL)
    del fields["sliding_window"]
    assert config_of_llama(fields).window == 4096
    del fields["num_key_value_heads"]
    with pytest.raises(ConfigError, match=r"^`num_attention_heads` in .* not one of 8;"):
        config_of_llama(fields)
    fields = llama_config_of(PLAIN)
    del fields["num_key_value_heads"]
    assert config_of_llama(fields).num_kv_heads == PLAIN.num_heads


LINEAR = {"rope_type": "linear", "factor": 2.0}
YARN_16 = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 16}
LONGROPE = {"type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            "llama",
            {"rope_parameters": LINEAR, "rope_scaling": {**LINEAR, "factor": 4.0}},
            "say the",
        ),
        ("llama", {"rope_parameters": {"rope_theta": 3.0, "rope_type": "default"}}, "`rope_theta`"),
        (
            "qwen2",
            {"rope_theta": None, "rope_scaling": {"rope_theta": 3.0}},
            "`rope_theta` .* None",
        ),
        ("llama", {"rope_scaling": {**LINEAR, "type": "yarn"}}, "`rope_type` .* and `type`"),
        ("llama", {"rope_scaling": {**LINEAR, "mscale": 2.0}}, "has mscale = 2.0"),
        ("llama", {"rope_parameters": {"full_attention": LINEAR}}, "has full_attention"),
        ("llama", {"rope_scaling": {**LINEAR, "partial_rotary_factor": 0.5}}, "`partial_rotary_fa"),
        ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}, "`original_max_posit"),
        ("llama", {"rope_scaling": {**YARN_16, "truncate": None}}, "`truncate` .* None"),
        ("phi3", {"rope_scaling": {**LONGROPE, "factor": 2.0}}, "has factor = 2.0"),
        ("phi3", {"rope_scaling": {"type": "longrope"}}, "`short_factor` .* None; give a list"),
        ("phi3", {"rope_scaling": {**LONGROPE, "short_factor": ["1"]}}, "`short_factor` .* '1'"),
        ("phi3", {"rope_scaling": {**LONGROPE, "long_factor": [2, 3]}}, "`rope_long` must have 1 "),
        (
            "phi3",
            {"rope_scaling": LONGROPE, "original_max_position_embeddings": None},
            "`original_max_position_embeddings` .* whole number, not None",
        ),
        (
            "phi3",
            {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": 8}},
            "`original_max_position_embeddings` .* 8 in `rope_parameters`, and 4096 outside",
        ),
        ("phi3", {"rope_scaling": LINEAR}, "`rope_type` in `config.json` is 'linear'"),
        ("phi3", {"partial_rotary_factor": 1.5}, "`partial_rotary_factor` .* at most 1, not 1.5"),
        ("mistral", {"layer_types": ["full_attention"] * 2}, "`layer_types`"),
        ("mistral", {"sliding_window": 0}, "`sliding_window` .* at least 1 or null, not 0"),
        (
            "qwen3",
            {"head_dim": None},
            "`head_dim` in `config.json` must be a whole number, not None",
        ),
        ("gemma", {"hidden_activation": "gelu"}, "`hidden_activation`"),
        # The class does not read it.
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, "`attn_logit_softcapping`"),
        ("mixtral", {"num_local_experts": 0}, "`num_local_experts` .* at least 1, not 0"),
        (
            "mixtral",
            {"num_experts_per_tok": 5},
            "^`num_experts_per_tok` in `config.json` must be at least 1 and at",
        ),
        ("mixtral", {"router_jitter_noise": 0.1}, "`router_jitter_noise`"),
        ("mixtral", {"output_router_logits": True}, "`output_router_logits`"),
        ("qwen3_moe", {"num_local_experts": 6}, "`num_experts` and `num_local_experts` .* 5 and 6"),
        ("qwen3_moe", {"decoder_sparse_step": 2}, "`decoder_sparse_step`"),
        ("qwen3_moe", {"mlp_only_layers": [1]}, "`mlp_only_layers`"),
        ("llama", {"is_encoder_decoder": True}, "`is_encoder_decoder`"),
        ("llama", {"quantization_config": {"bits": 4}}, "`quantization_config`"),
    ],
)
def test_conflicts_are_refused_by_name(kind: str, change: dict[str, Any], words: str) -> None:
    fields = llama_config_of(MODELS[kind], kind=kind)
    fields |= {"rope_scaling": None} if kind == "llama" else {}
    with pytest.raises(ConfigError, match=words):
        config_of_llama({**fields, **change})


def test_both_forms_of_rotary_fields_may_agree() -> None:
    for config in (YARN, UNROUNDED, DYNAMIC):
        fields = llama_config_of(config)
        new = {**fields["rope_scaling"], "rope_theta": fields["rope_theta"]}
        assert config_of_llama({**fields, "rope_parameters": new}) == config


def test_longrope_is_written_as_version_4_reads_it() -> None:
    # 3 times 9 tokens; the model itself stops earlier.
    assert SHORT.sequence < 27
    fields = llama_config_of(SHORT)
    assert fields["max_position_embeddings"] == 27
    assert fields["original_max_position_embeddings"] == 9
    scaling = {"type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 3.0, 7.5]}
    assert fields["rope_scaling"] == scaling
    whole = replace(SHORT, sequence=27)
    assert config_of_llama(fields) == whole
    new = {**scaling, "rope_type": "longrope", "original_max_position_embeddings": 9}
    assert config_of_llama({**fields, "rope_parameters": new}) == whole
    assert config_of_llama({**fields, "rope_scaling": {**scaling, "type": "su"}}) == whole
    fields["rope_scaling"] = None
    new |= {"factor": 2.0, "attention_factor": 1.5}
    config = config_of_llama({**fields, "rope_parameters": new})
    assert config == replace(whole, rope_factor=2.0, rope_magnitude=1.5)
    with pytest.raises(ConfigError, match=r"`model.rope_magnitude` is 1.5, and must be 0.0 in ph"):
        llama_config_of(config)
    with pytest.raises(ConfigError, match=r"`model.sequence` is 28, and must be 27 in phi3"):
        llama_config_of(replace(SHORT, sequence=28))


def test_experts_of_version_5_have_another_name() -> None:
    fields = llama_config_of(MODELS["qwen3_moe"])
    both = {**fields, "num_local_experts": fields["num_experts"]}
    assert config_of_llama(both) == MODELS["qwen3_moe"]
    del both["num_experts"]
    assert config_of_llama(both) == MODELS["qwen3_moe"]


def test_a_head_beside_a_tied_table_must_equal_it(tmp_path: Path) -> None:
    config = MODELS["gemma"]
    tensors = tensors_of(config)
    write_model(tmp_path, config, lambda names: {n: tensors[n] for n in names})
    theirs = load_file(tmp_path / "model.safetensors")
    theirs["lm_head.weight"] = theirs["model.embed_tokens.weight"].copy()
    save_file(theirs, tmp_path / "model.safetensors")
    assert_same(arrays(read_model(tmp_path)[1]), tensors)
    theirs["lm_head.weight"][0, 0] += 1
    save_file(theirs, tmp_path / "model.safetensors")
    with pytest.raises(
        CheckpointError, match=r"`tie_word_embeddings` .* `lm_head\.weight` differs"
    ):
        read_model(tmp_path)


def test_of_a_single_file_and_an_index_the_file_counts(tmp_path: Path) -> None:
    tensors = tensors_of(PLAIN)
    write_model(tmp_path, PLAIN, lambda names: {n: tensors[n] for n in names})
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "b.safetensors"}}')
    assert_same(arrays(read_model(tmp_path)[1]), tensors)


@pytest.mark.parametrize("targets", [("query", "key", "value", "project"), ("value", "up")])
def test_adapters_of_parts_are_one_adapter_of_the_fused_product(
    targets: tuple[str, ...], tmp_path: Path
) -> None:
    lora, tensors = LoraConfig(rank=2, alpha=3.0, targets=targets), tensors_of(PHI3)
    source = np.random.default_rng(1)
    for name, kernel in tuple(tensors.items()):
        if name.endswith(tuple(f"{target}.kernel" for target in targets)):
            tensors[name + LORA_A] = source.normal(size=(kernel.shape[0], 2)).astype(np.float32)
            tensors[name + LORA_B] = source.normal(size=(2, kernel.shape[1])).astype(np.float32)
    write_adapter(
        tmp_path,
        PHI3,
        lora,
        lambda names: {n: tensors[n] for n in names},
        tensors,
        form=ExportForm(kind="phi3"),
        base="org/base",
    )
    fields = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    assert fields["base_model_name_or_path"] == "org/base"
    written = load_file(tmp_path / ADAPTER_WEIGHTS)
    module, end = "base_model.model.model.layers.1.self_attn.qkv_proj", "self_attn.qkv_proj"
    rank, alpha = fields["rank_pattern"][end], fields["alpha_pattern"][end]
    assert (rank, alpha / rank) == (6, lora.scale)
    added = (written[f"{module}.lora_B.weight"] @ written[f"{module}.lora_A.weight"]).T
    parts = [
        tensors[name + LORA_A] @ tensors[name + LORA_B]
        if name + LORA_A in tensors
        else np.zeros_like(tensors[name])
        for name in (f"blocks.1.attention.{part}.kernel" for part in ("query", "key", "value"))
    ]
    np.testing.assert_allclose(added, np.concatenate(parts, axis=1), rtol=1e-5, atol=1e-6)
