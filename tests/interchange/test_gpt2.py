"""GPT-2 in and out: the same logits as an oracle, the same bits after a round trip."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_dtypes import bfloat16, float8_e4m3fn
from safetensors.numpy import save_file

from jaxpipe.errors import CheckpointError, ConfigError
from jaxpipe.interchange import (
    config_of_gpt2,
    gpt2_config_of,
    our_names,
    read_gpt2,
    tensors_of_gpt2,
    to_gpt2_tensors,
    write_gpt2,
)
from jaxpipe.models import GptConfig
from jaxpipe.models.gpt import Gpt
from jaxpipe.runtime.checkpoint.tensor_names import flatten, names, restore
from jaxpipe.runtime.config import Loop
from jaxpipe.runtime.stage.stage import Stage
from tests.oracles import numpy_gpt2

CONFIG = GptConfig(num_layers=2, dim=12, num_heads=3, sequence=9, vocabulary=17)
UNTIED = GptConfig(num_layers=1, dim=8, num_heads=1, sequence=4, vocabulary=11, tied=False)
TOKENS = np.array([[1, 2, 3, 0], [10, 9, 8, 7]])

SIZES = st.builds(
    lambda layers, heads, width, sequence, vocabulary, tied: GptConfig(
        num_layers=layers,
        dim=heads * width,
        num_heads=heads,
        sequence=sequence,
        vocabulary=vocabulary,
        tied=tied,
    ),
    *(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4)),
    *(st.integers(1, 5), st.integers(1, 7), st.booleans()),
)


def our_logits(config: GptConfig, tensors: dict[str, np.ndarray]) -> np.ndarray:
    """Return what our model makes of `TOKENS` with a checkpoint's tensors."""
    model = Gpt(config)
    everything = range(config.num_layers)
    template = jax.eval_shape(
        lambda: model.init(jax.random.key(0), layers=everything, embed=True, head=True)
    )
    assert set(names(template, first_layer=0)) == set(our_names(config))
    params = restore(template, tensors, first_layer=0)
    stage = Stage(model=model, index=0, num_stages=1, layers=everything, loop=Loop.SCAN)
    return np.asarray(stage.logits(jax.device_put(params), jnp.asarray(TOKENS, jnp.int32)))


@pytest.mark.slow
@pytest.mark.parametrize("config", [CONFIG, UNTIED])
def test_an_imported_model_has_the_logits_of_the_oracle(config: GptConfig, tmp_path: Path):
    theirs = numpy_gpt2.random_tensors(config)
    save_file(theirs, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(gpt2_config_of(config)))
    read, tensors = read_gpt2(tmp_path)
    assert read == config
    expected = numpy_gpt2.logits(theirs, TOKENS, config)
    assert np.abs(our_logits(config, tensors) - expected).max() < 1e-4


def test_old_names_buffers_and_several_files_are_read(tmp_path: Path):
    theirs = numpy_gpt2.random_tensors(CONFIG)
    plain = {name.removeprefix("transformer."): tensor for name, tensor in theirs.items()}
    plain["h.0.attn.bias"] = np.ones((1, 1, 9, 9), np.float32)
    plain["lm_head.weight"] = plain["wte.weight"]
    halves = {"a.safetensors": sorted(plain)[:9], "b.safetensors": sorted(plain)[9:]}
    for file, held in halves.items():
        save_file({name: plain[name] for name in held}, tmp_path / file)
    where = {name: file for file, held in halves.items() for name in held}
    index = {"metadata": {}, "weight_map": where}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    (tmp_path / "config.json").write_text(json.dumps(gpt2_config_of(CONFIG)))
    _, tensors = read_gpt2(tmp_path)
    assert_same(tensors, tensors_of_gpt2(theirs, CONFIG))


@settings(max_examples=40)
@given(SIZES)
def test_there_and_back_is_the_same(config: GptConfig):
    assert config_of_gpt2(gpt2_config_of(config)) == config
    theirs = numpy_gpt2.random_tensors(config)
    ours = tensors_of_gpt2(theirs, config)
    assert set(ours) == set(our_names(config))
    assert_same(to_gpt2_tensors(ours, config), theirs)


def test_a_folder_written_is_read_again(tmp_path: Path):
    ours = tensors_of_gpt2(numpy_gpt2.random_tensors(UNTIED), UNTIED)
    write_gpt2(tmp_path / "new" / "folder", UNTIED, ours)
    config, again = read_gpt2(tmp_path / "new" / "folder")
    assert config == UNTIED
    assert_same(again, ours)


_READ_ALONE = """
import sys
from pathlib import Path
from jaxpipe.interchange import read_gpt2
assert "jax" not in sys.modules, "jax would register bfloat16 itself"
print(sum(float(t.sum()) for t in read_gpt2(Path(sys.argv[1]))[1].values()))
"""


def test_weights_in_bfloat16_are_read(tmp_path: Path):
    theirs = numpy_gpt2.random_tensors(CONFIG)
    rounded = {name: tensor.astype(bfloat16) for name, tensor in theirs.items()}
    save_file(rounded, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(gpt2_config_of(CONFIG)))
    _, tensors = read_gpt2(tmp_path)
    assert_same(tensors, tensors_of_gpt2(rounded, CONFIG))
    done = subprocess.run(
        [sys.executable, "-c", _READ_ALONE, tmp_path],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) == pytest.approx(sum(float(t.sum()) for t in tensors.values()))


def test_weights_in_a_format_without_numpy_are_refused(tmp_path: Path):
    theirs = numpy_gpt2.random_tensors(CONFIG)
    small = {name: tensor.astype(float8_e4m3fn) for name, tensor in theirs.items()}
    save_file(small, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(gpt2_config_of(CONFIG)))
    with pytest.raises(CheckpointError, match="float8"):
        read_gpt2(tmp_path)


def assert_same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        np.testing.assert_array_equal(tensor, other[name], err_msg=name)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model_type", "gpt_neo"),
        ("activation_function", "gelu"),
        ("layer_norm_epsilon", 1e-6),
        ("n_inner", 13),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("add_cross_attention", True),
        ("n_layer", "two"),
        ("n_embd", 13),
    ],
)
def test_what_cannot_be_computed_is_refused_by_name(field: str, value: Any):
    with pytest.raises(ConfigError, match=f"^`{field}` "):
        config_of_gpt2(gpt2_config_of(CONFIG) | {field: value})


def test_a_config_without_its_type_is_refused():
    with pytest.raises(ConfigError, match="`model_type`"):
        config_of_gpt2({"n_layer": 1})


def test_tensors_of_another_model_are_refused():
    theirs = numpy_gpt2.random_tensors(CONFIG)
    gone = {name: t for name, t in theirs.items() if name != "transformer.ln_f.bias"}
    with pytest.raises(CheckpointError, match=r"lacks ln_f\.bias"):
        tensors_of_gpt2(gone, CONFIG)
    with pytest.raises(CheckpointError, match=r"also has h\.0\.extra"):
        tensors_of_gpt2(theirs | {"h.0.extra": np.zeros(1)}, CONFIG)
    with pytest.raises(
        CheckpointError, match=r"`wpe\.weight` has shape \[2, 3\], and must have \[9, 12\]"
    ):
        tensors_of_gpt2(theirs | {"transformer.wpe.weight": np.zeros((2, 3))}, CONFIG)


def test_a_folder_without_a_model_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"has no model\.safetensors"):
        read_gpt2(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(gpt2_config_of(CONFIG)))
    with pytest.raises(CheckpointError, match="save_pretrained"):
        read_gpt2(tmp_path)


@pytest.mark.parametrize("tied", [True, False])
def test_transformers_has_the_same_logits_before_and_after(tied: bool, tmp_path: Path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_layer=2,
            n_embd=12,
            n_head=3,
            n_positions=9,
            vocab_size=17,
            initializer_range=0.3,
            tie_word_embeddings=tied,
        )
    ).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    config, tensors = read_gpt2(tmp_path / "theirs")
    with torch.no_grad():
        expected = theirs(torch.asarray(TOKENS)).logits.numpy()
    assert np.abs(our_logits(config, tensors) - expected).max() < 1e-4

    write_gpt2(tmp_path / "ours", config, tensors)
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "ours").eval()
    with torch.no_grad():
        assert np.array_equal(again(torch.asarray(TOKENS)).logits.numpy(), expected)


def write_model(folder: Path, change: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    save_file(tensors, folder / "model.safetensors")
    fields = gpt2_config_of(CONFIG) | change
    (folder / "config.json").write_text(json.dumps(fields))


def their_tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    shapes = jax.eval_shape(
        lambda: Gpt(CONFIG).init(jax.random.key(0), layers=range(2), embed=True, head=True)
    )
    random = jax.tree.map(lambda leaf: generator.normal(size=leaf.shape), shapes)
    return to_gpt2_tensors(flatten(random, first_layer=0), CONFIG)


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e39])
def test_weights_that_are_no_numbers_are_named(tmp_path: Path, value: float):
    tensors = {name: each.astype(np.float64) for name, each in their_tensors().items()}
    tensors["transformer.h.1.mlp.c_fc.bias"][3] = value
    write_model(tmp_path, {}, tensors)
    with pytest.raises(
        CheckpointError, match=r"`h\.1\.mlp\.c_fc\.bias` has 1 weights of 48 that are NaN"
    ):
        read_gpt2(tmp_path)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"n_layer": 60_000},
            "`n_layer` .60,000. needs 12 tensors in each layer, and there are 28 tensors",
        ),
        ({"n_layer": True}, "`n_layer` .* must be a whole number, not True"),
        (
            {"vocab_size": 2 * 10**9},
            r"`wte\.weight` has shape \[17, 12\], and must have \[2000000000, 12\]",
        ),
        ({"n_embd": "x" * 10**6}, "`n_embd` .* must be a whole number, not 'x"),
        ({"tie_word_embeddings": "\x1b[2J"}, "`tie_word_embeddings` in `config.json` is '"),
    ],
)
def test_sizes_claim_neither_time_nor_memory(tmp_path: Path, change: dict[str, Any], words: str):
    write_model(tmp_path, change, their_tensors())
    with pytest.raises((CheckpointError, ConfigError), match=words) as raised:
        read_gpt2(tmp_path)
    assert len(str(raised.value)) < 500
    assert str(raised.value).isprintable()


@pytest.mark.parametrize("file", ["../model.safetensors", "/etc/passwd", ""])
def test_an_index_names_files_of_its_folder(tmp_path: Path, file: str):
    write_model(tmp_path, {}, their_tensors())
    (tmp_path / "model.safetensors").unlink()  # which counts, where both are there
    index = {"weight_map": {"transformer.wte.weight": file}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="not the name of a file in this folder"):
        read_gpt2(tmp_path)


@pytest.mark.parametrize("index", [[], {}, {"weight_map": 3}, {"weight_map": {"a": 3}}])
def test_an_index_of_wrong_types_is_one_error(tmp_path: Path, index: Any):
    write_model(tmp_path, {}, their_tensors())
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"weight_map|a model is a folder with"):
        read_gpt2(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_pipe_is_not_waited_for_and_a_link_is_followed(tmp_path: Path, name: str):
    write_model(tmp_path, {}, their_tensors())
    (tmp_path / name).rename(tmp_path / "blob")
    (tmp_path / name).symlink_to("blob")
    assert len(read_gpt2(tmp_path)[1]) == 28
    (tmp_path / name).unlink()
    os.mkfifo(tmp_path / name)
    with pytest.raises((CheckpointError, ConfigError), match="not a regular file"):
        read_gpt2(tmp_path)
