"""Adapters in PEFT's files: names and shapes, and the logits of PEFT where it is installed."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxpipe.errors import ConfigError
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.finetune.adapter_names import factor_shapes, of_experts
from jaxpipe.finetune.merge import merged_tensors
from jaxpipe.interchange import (
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    our_names,
    shape_of,
    write_adapter,
    write_model,
)
from jaxpipe.interchange.llama_tensors import llama_pairs
from jaxpipe.models import GptConfig, LlamaConfig, ModelConfig
from tests.oracles.llamas import GEMMA, GEMMA3_RAGGED, MIXTRAL, QWEN3, QWEN3_MOE

GPT2 = GptConfig(num_layers=2, dim=8, num_heads=2, sequence=16, vocabulary=19)
LORA = LoraConfig(rank=2, alpha=3.0)
TOKENS = np.array([[1, 2, 3, 0, 18, 4, 4], [10, 9, 8, 7, 6, 5, 4]])
MODELS: dict[str, ModelConfig] = {
    "gpt2": GPT2,
    "qwen3": QWEN3,
    "gemma2": GEMMA,
    "gemma3": GEMMA3_RAGGED,
    "mixtral": MIXTRAL,
    "qwen3_moe": QWEN3_MOE,
}
every_model = pytest.mark.parametrize("name", MODELS)


def tensors_of(config: ModelConfig, *, targets: tuple[str, ...]) -> dict[str, np.ndarray]:
    """Return random parameters, and adapters of the kernels whose names have one of `targets`."""
    source = np.random.default_rng(0)
    if isinstance(config, LlamaConfig):
        shapes = {pair.ours: pair.shape for pair in llama_pairs(config)}
    else:
        assert isinstance(config, GptConfig)
        shapes = {name: shape_of(name, config) for name in our_names(config)}
    for name, shape in tuple(shapes.items()):
        is_kernel = name.endswith(".kernel") or of_experts(name, len(shape))
        if is_kernel and any(target in name for target in targets):
            a, b = factor_shapes(name, shape, LORA.rank)
            shapes |= {name + LORA_A: a, name + LORA_B: b}
    return {
        name: (0.3 * source.normal(size=shape)).astype(np.float32) for name, shape in shapes.items()
    }


def reader(tensors: dict[str, np.ndarray]) -> Any:
    return lambda wanted: {name: tensors[name] for name in wanted}


@every_model
def test_names_and_shapes_are_those_of_peft(name: str, tmp_path: Path) -> None:
    config = MODELS[name]
    tensors = tensors_of(config, targets=(".attention.",))
    write_adapter(tmp_path, config, LORA, reader(tensors), tensors)
    found = load_file(tmp_path / ADAPTER_WEIGHTS)
    fields = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    assert (fields["peft_type"], fields["r"], fields["lora_alpha"]) == ("LORA", 2, 3.0)
    if name == "gpt2":
        module = "base_model.model.transformer.h.1.attn.c_attn"
        ours, width = "blocks.1.attention.qkv.kernel", 24
        assert fields["target_modules"] == ["attn.c_attn", "attn.c_proj"]
    else:
        module = "base_model.model.model.layers.0.self_attn.q_proj"
        part = "local." if name == "gemma2" else ""
        ours = f"blocks.0.{part}attention.query.kernel"
        width = tensors[ours].shape[1]
        assert fields["target_modules"] == [f"self_attn.{each}_proj" for each in "koqv"]
    assert fields["fan_in_fan_out"] is (name == "gpt2")
    np.testing.assert_array_equal(found[f"{module}.lora_A.weight"], tensors[ours + LORA_A].T)
    b = found[f"{module}.lora_B.weight"]
    assert b.shape == (width, 2)
    np.testing.assert_array_equal(b.T.reshape(tensors[ours + LORA_B].shape), tensors[ours + LORA_B])
    assert len(found) == len([each for each in tensors if each.endswith((LORA_A, LORA_B))])


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("mixtral", ("block_sparse_moe.experts.3.w1", "block_sparse_moe.experts.3.w3")),
        ("qwen3_moe", ("mlp.experts.3.gate_proj", "mlp.experts.3.up_proj")),
    ],
)
def test_gate_and_up_of_experts_have_adapters_together(
    name: str, modules: tuple[str, str], tmp_path: Path
) -> None:
    tensors = tensors_of(MODELS[name], targets=(".moe.up",))
    write_adapter(tmp_path, MODELS[name], LORA, reader(tensors), tensors)
    fields = json.loads((tmp_path / ADAPTER_CONFIG).read_text())
    ends = [module.rpartition(".")[2] for module in modules]
    assert fields["target_modules"] == sorted(ends)
    files = load_file(tmp_path / ADAPTER_WEIGHTS)
    gate, up = (f"base_model.model.model.layers.1.{module}" for module in modules)
    np.testing.assert_array_equal(
        files[f"{up}.lora_A.weight"].T, tensors["blocks.1.moe.up" + LORA_A][3]
    )
    np.testing.assert_array_equal(
        files[f"{up}.lora_B.weight"].T, tensors["blocks.1.moe.up" + LORA_B][3]
    )
    assert not files[f"{gate}.lora_A.weight"].any()
    assert not files[f"{gate}.lora_B.weight"].any()


def test_adapters_of_some_layers_are_refused(tmp_path: Path) -> None:
    tensors = tensors_of(GEMMA, targets=("local.attention.query",))
    lora = replace(LORA, targets=("local.attention.query",))
    words = (
        "`lora.targets` .local.attention.query. must match .* self_attn.q_proj has an adapter in "
    )
    with pytest.raises(ConfigError, match=words):
        write_adapter(tmp_path, GEMMA, lora, reader(tensors), tensors)
    assert not (tmp_path / ADAPTER_CONFIG).exists()


@every_model
@pytest.mark.filterwarnings("ignore::FutureWarning")  # of PEFT, to itself
def test_peft_has_the_logits_of_the_merged_model(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    peft = pytest.importorskip("peft")
    transformers = pytest.importorskip("transformers")
    config = MODELS[name]
    tensors = tensors_of(config, targets=(".attention.", ".mlp.", ".moe."))
    present = tensors.keys()
    write_model(tmp_path / "base", config, reader(tensors))
    write_model(tmp_path / "merged", config, merged_tensors(reader(tensors), present, LORA))
    write_adapter(tmp_path / "adapter", config, LORA, reader(tensors), tensors)
    base, merged = (
        transformers.AutoModelForCausalLM.from_pretrained(
            tmp_path / each, attn_implementation="eager"
        ).eval()
        for each in ("base", "merged")
    )
    with torch.no_grad():
        plain = base(torch.asarray(TOKENS)).logits
        expected = merged(torch.asarray(TOKENS)).logits
        adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter").eval()
        found = adapted(torch.asarray(TOKENS)).logits
    assert float((expected - plain).abs().max()) > 0.1
    assert float((found - expected).abs().max()) < 1e-4
