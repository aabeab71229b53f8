"""Decoders of the Llama type in and out: the same bits after a round trip; refusals by name."""

import json
import tracemalloc
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange import (
    config_of_llama,
    llama_config_of,
    llama_pairs,
    model_folder,
    our_names,
    read_model,
    tensor_files,
    write_model,
)
from jaxpipe.models import LlamaConfig
from jaxpipe.models.kernels.rotary import frequencies
from jaxpipe.models.llama import Llama
from jaxpipe.models.rope_scaling import RopeScaling
from jaxpipe.runtime.checkpoint import (
    StreamedTensor,
    names,
    restore,
    shapes,
    streamed_shard,
    write_streamed_shard,
)
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles.llamas import GEMMA, KINDS, LLAMA, MISTRAL, PHI3, PLAIN, QWEN2, QWEN3

TOKENS = np.array([[1, 2, 3, 0, 18, 4, 4], [10, 9, 8, 7, 6, 5, 4]])
# Llama has biases in attention as a whole.
EXPORTED = KINDS


def random_tensors(config: LlamaConfig) -> dict[str, np.ndarray]:
    """Return parameters under our names."""
    source = np.random.default_rng(0)
    return {
        pair.ours: source.normal(size=pair.shape).astype(np.float32) for pair in llama_pairs(config)
    }


def our_logits(config: LlamaConfig, tensors: dict[str, np.ndarray]) -> np.ndarray:
    model, layers = Llama(config), range(config.num_layers)
    template = jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=layers, embed=True, head=True)
    )
    params = jax.device_put(restore(template, tensors, first_layer=0))
    stage = Stage(model=model, index=0, num_stages=1, layers=layers, loop=Loop.SCAN)
    return np.asarray(stage.logits(params, jnp.asarray(TOKENS, jnp.int32)))


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, other[name], err_msg=name)


def held_by(tensors: Iterable[StreamedTensor]) -> dict[str, np.ndarray]:
    return {tensor.name: tensor.array() for tensor in tensors}


def write(config: LlamaConfig, path: Path, tensors: dict[str, np.ndarray]) -> str:
    return write_model(path, config, lambda wanted: {name: tensors[name] for name in wanted})


@pytest.mark.parametrize("config", EXPORTED.values(), ids=EXPORTED)
def test_names_and_shapes_are_those_of_the_model(config: LlamaConfig) -> None:
    model = Llama(config)
    template = jax.eval_shape(
        lambda: model.init(
            jax.random.key(0), layers=range(config.num_layers), embed=True, head=True
        )
    )
    assert set(names(template, first_layer=0)) == set(our_names(config))
    ours = {pair.ours: pair.shape for pair in llama_pairs(config)}
    assert ours == shapes(template, first_layer=0)


@pytest.mark.parametrize("config", EXPORTED.values(), ids=EXPORTED)
def test_there_and_back_is_the_same(
    config: LlamaConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_folder, "FILE_BYTES", 4000)
    tensors = random_tensors(config)
    write(config, tmp_path, tensors)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 2
    read, again = read_model(tmp_path)
    assert read == config
    assert_same(held_by(again), tensors)


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (LLAMA, "LlamaForCausalLM"),
        (QWEN2, "Qwen2ForCausalLM"),
        (QWEN3, "Qwen3ForCausalLM"),
        (MISTRAL, "MistralForCausalLM"),
        (GEMMA, "Gemma2ForCausalLM"),
    ],
)
def test_a_model_is_written_as_its_architecture(
    config: LlamaConfig, name: str, tmp_path: Path
) -> None:
    assert write(config, tmp_path, random_tensors(config)) == name
    held = load_file(tmp_path / "model.safetensors")
    kernel = held["model.layers.0.mlp.down_proj.weight"]
    assert kernel.shape == (config.dim, config.hidden)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"final_softcap": 3.0}, "`model.final_softcap` is 3.0, and must be 0.0 in llama"),
        ({"project_bias": True}, "`model.project_bias` is True, and must be False in llama"),
        (
            {"window": 3, "alternating": True},
            "`model.qkv_bias` is False, and must be True in qwen2",
        ),
        (
            {"qk_norm": True, "qkv_bias": True},
            "`model.qk_norm` is True, and must be False in qwen2",
        ),
    ],
)
def test_what_transformers_does_not_have_is_not_exported(
    change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        llama_config_of(replace(PLAIN, **change))


def test_ntk_is_exported_as_its_base() -> None:
    config = replace(PLAIN, rope_scaling=RopeScaling.NTK, rope_factor=4.0)
    again = config_of_llama(llama_config_of(config))
    assert again.rope_scaling is RopeScaling.NONE
    np.testing.assert_allclose(frequencies(again), frequencies(config), rtol=1e-12)


def test_both_forms_of_rotary_fields_are_read() -> None:
    fields = llama_config_of(LLAMA)
    scaling = fields.pop("rope_scaling")
    fields["rope_parameters"] = {**scaling, "rope_theta": fields.pop("rope_theta")}
    assert config_of_llama(fields) == LLAMA
    linear = replace(PLAIN, rope_scaling=RopeScaling.LINEAR, rope_factor=2.0)
    fields = llama_config_of(linear)
    fields["rope_scaling"] = {"type": "linear", "factor": 2.0}
    assert config_of_llama(fields) == linear


@pytest.mark.parametrize(
    ("config", "field", "value"),
    [
        (LLAMA, "model_type", "falcon"),
        (LLAMA, "hidden_act", "gelu"),
        (LLAMA, "rope_scaling", {"rope_type": "longrope", "factor": 2.0}),
        (LLAMA, "rope_scaling", {"rope_type": "llama3", "factor": 2.0}),
        (LLAMA, "rope_scaling", 3),
        (LLAMA, "rope_theta", "high"),
        (LLAMA, "num_hidden_layers", True),
        (LLAMA, "hidden_size", None),
        (LLAMA, "mlp_bias", "yes"),
        (LLAMA, "rope_interleaved", True),
        (LLAMA, "partial_rotary_factor", 0.5),
        (LLAMA, "quantization_config", {"bits": 4}),
        (QWEN2, "use_sliding_window", "yes"),
        (QWEN3, "layer_types", ["full_attention", "sliding_attention"]),
        (GEMMA, "hidden_activation", "gelu"),
        (GEMMA, "layer_types", ["full_attention"] * 3),
        (GEMMA, "layer_types", ["chunked_attention"] * 4),
        (GEMMA, "use_bidirectional_attention", True),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(
    config: LlamaConfig, field: str, value: Any
) -> None:
    named = {"rope_scaling": "rope_type|low_freq_factor|rope_scaling"}.get(field, field)
    fields = llama_config_of(config) | {field: value}
    if field == "rope_theta":
        fields["rope_scaling"] = None
    with pytest.raises(ConfigError, match=f"^`({named})` "):
        config_of_llama(fields)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (LLAMA, {"is_llama_config": True, "rope_interleaved": False, "pretraining_tp": 2}),
        (LLAMA, {"transformers.js_config": {"dtype": "q4"}, "max_sequence_length": 16384}),
        (LLAMA, {"unsloth_fixed": True, "unsloth_version": "2025.1", "neftune_noise_alpha": 5}),
        (QWEN2, {"use_mrope": False}),
        (PHI3, {"attention_bias": False, "mlp_bias": False, "lm_head_bias": False}),
        (PHI3, {"full_attn_mod": 1, "interpolate_factor": 1}),
    ],
)
def test_fields_of_published_files_that_no_class_reads(
    config: LlamaConfig, fields: dict[str, Any]
) -> None:
    stated = llama_config_of(config)
    assert config_of_llama(stated | fields) == config_of_llama(stated)


def test_weights_in_bfloat16_and_old_buffers_are_read(tmp_path: Path) -> None:
    tensors = random_tensors(LLAMA)
    write(LLAMA, tmp_path, tensors)
    theirs = load_file(tmp_path / "model.safetensors")
    short = {name: tensor.astype(bfloat16) for name, tensor in theirs.items()}
    short["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(2, bfloat16)
    save_file(short, tmp_path / "model.safetensors")
    _, again = read_model(tmp_path)
    rounded = {k: each.astype(bfloat16).astype(np.float32) for k, each in tensors.items()}
    assert_same(held_by(again), rounded)


def test_an_import_holds_a_part_of_a_table_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tables have 16 MB each, in float32 as in the file, and 1 MB is read at a time."""
    monkeypatch.setattr(tensor_files, "_PART_VALUES", 2**18)
    monkeypatch.setattr(streamed_shard, "_PIECE_BYTES", 2**20)
    config = replace(LLAMA, vocabulary=2**18, tied=False)
    tensors = random_tensors(config)
    write(config, tmp_path / "theirs", tensors)
    _, streamed = read_model(tmp_path / "theirs")
    tracemalloc.start()
    try:
        write_streamed_shard(tmp_path, "parameters", tuple(streamed))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert tensors["embed.tokens"].nbytes == 2**24
    assert peak_bytes < 2**23
    assert_same(load_file(tmp_path / "parameters.safetensors"), tensors)


def test_tensors_of_another_model_are_refused(tmp_path: Path) -> None:
    write(LLAMA, tmp_path, random_tensors(LLAMA))
    theirs = load_file(tmp_path / "model.safetensors")

    def reread(change: dict[str, np.ndarray | None]) -> None:
        held = {name: each for name, each in (theirs | change).items() if each is not None}
        save_file(held, tmp_path / "model.safetensors")
        held_by(read_model(tmp_path)[1])

    norm = "model.norm.weight"
    with pytest.raises(CheckpointError, match=r"lack model\.norm\.weight"):
        reread({norm: None})
    with pytest.raises(CheckpointError, match=r"also have extra"):
        reread({"extra": np.zeros(1)})
    with pytest.raises(
        CheckpointError, match=r"`model\.norm\.weight` has shape \[3\], and must have \[16\]"
    ):
        reread({norm: np.zeros(3, np.float32)})
    with pytest.raises(
        CheckpointError, match=r"`model\.norm\.weight` has 1 weights of 16 that are NaN"
    ):
        reread({norm: np.array([np.nan] + [0] * 15, np.float32)})
    fields = json.loads((tmp_path / "config.json").read_text()) | {"num_hidden_layers": 60_000}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    with pytest.raises(CheckpointError, match=r"`num_hidden_layers` .60,000. needs"):
        read_model(tmp_path)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma2"])
def test_transformers_has_the_same_logits_before_and_after(kind: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = KINDS[kind]
    torch.manual_seed(0)
    fields = {**llama_config_of(config), "initializer_range": 0.3}
    theirs_config = transformers.AutoConfig.for_model(
        **{name: each for name, each in fields.items() if name != "architectures"}
    )
    theirs = transformers.AutoModelForCausalLM.from_config(
        theirs_config, attn_implementation="eager"
    ).eval()
    with torch.no_grad():  # norms and biases that are all ones or zeros would show nothing
        for parameter in theirs.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        expected = theirs(torch.asarray(TOKENS)).logits.numpy()
    theirs.save_pretrained(tmp_path / "theirs")
    read, tensors = read_model(tmp_path / "theirs")
    held = held_by(tensors)
    assert read == config
    assert np.abs(our_logits(config, held) - expected).max() < 1e-4

    write(config, tmp_path / "ours", held)
    again = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "ours", attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        assert np.array_equal(again(torch.asarray(TOKENS)).logits.numpy(), expected)


def test_weights_that_are_elsewhere_or_quantized_are_named(tmp_path: Path) -> None:
    write(LLAMA, tmp_path, random_tensors(LLAMA))
    weights = tmp_path / "model.safetensors"
    name = "model.layers.0.mlp.up_proj.weight"
    tensors = load_file(weights)
    save_file({**tensors, name: tensors[name].astype(np.int8)}, weights)
    with pytest.raises(CheckpointError, match=f"`{name}` has numbers in int8, as quantized models"):
        held_by(read_model(tmp_path)[1])
    weights.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    with pytest.raises(CheckpointError, match=r"model\.safetensors must be .* `git lfs pull`"):
        read_model(tmp_path)
    weights.unlink()
    index = {"weight_map": {name: "model-00001-of-00001.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"00001\.safetensors is missing; download it"):
        read_model(tmp_path)
