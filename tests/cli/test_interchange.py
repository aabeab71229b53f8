"""`jaxpipe import`, a run that goes on from there, and `jaxpipe export`."""

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxpipe.cli.main import main
from jaxpipe.config import load_config, to_tree
from jaxpipe.finetune import LORA_A, LORA_B, LoraConfig
from jaxpipe.interchange import gpt2_config_of, llama_pairs, write_adapter, write_model
from jaxpipe.models import GptConfig
from tests.oracles.llamas import KINDS
from tests.oracles.numpy_gpt2 import random_tensors
from tests.runtime.training import run_tree

CONFIG = GptConfig(num_layers=2, dim=8, num_heads=2, sequence=16, vocabulary=256)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    given = tmp_path / "given"
    given.mkdir()
    save_file(random_tensors(CONFIG), given / "model.safetensors")
    (given / "config.json").write_text(json.dumps(gpt2_config_of(CONFIG)))
    return given


@pytest.mark.slow
def test_a_model_comes_in_is_trained_and_goes_out(
    folder: Path, tmp_path: Path, dataset: Path, capsys: pytest.CaptureFixture[str]
):
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(["import", str(folder), "-o", str(run), "--data", str(dataset)]) == 0
    assert f"jaxpipe train {run / 'config.toml'} --from {run}" in capsys.readouterr().out

    assert main(["export", str(run), "-o", str(out)]) == 0
    before, after = load_file(folder / "model.safetensors"), load_file(out / "model.safetensors")
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)

    small = ("train.steps=2", "train.batch=2", "train.eval_batches=1", "optimizer.warmup_steps=0")
    one = ("plan.stages=1", "plan.replicas=1", "plan.microbatch=1", "plan.schedule=1f1b")
    words = [word for setting in (*small, *one) for word in ("--set", setting)]
    begin = ["train", str(run / "config.toml"), "--from", str(run), *words]
    assert main([*begin, "--check"]) == 0
    assert "resuming after step 0/2" in capsys.readouterr().out
    assert main([*begin, "--check", "--set", f"run.folder={tmp_path / 'second'}"]) == 0
    # Data that do not suffice are refused before the checkpoint of the new run is written.
    second = ["--set", f"run.folder={tmp_path / 'second'}", "--set", "train.batch=100000"]
    assert main([*begin, *second]) == 2
    assert not (tmp_path / "second" / "checkpoints").exists()
    capsys.readouterr()
    settings = [*small, "plan.stages=2", "optimizer.learning_rate=0.1"]
    metrics = run_tree(to_tree(load_config(run / "config.toml", settings)), resume=True)
    assert [each.step for each in metrics] == [1, 2]

    assert main(["export", str(run), "-o", str(tmp_path / "trained")]) == 0
    assert "step 2 of" in capsys.readouterr().out
    card = (tmp_path / "trained" / "README.md").read_text()
    for fact in ("| base model | given", "| steps | 2 of 2 |", "| tokens | 64: 2 samples of 16 a"):
        assert fact in card
    assert "| training loss | " in card
    trained = load_file(tmp_path / "trained" / "model.safetensors")
    assert not np.array_equal(before["transformer.wte.weight"], trained["transformer.wte.weight"])


def test_a_run_is_not_overwritten(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    words = ["import", str(folder), "-o", str(tmp_path / "run")]
    (folder / "tokenizer.model").write_bytes(b"of SentencePiece")
    assert main(words) == 0
    printed = capsys.readouterr().err.replace("\n", " ")
    assert "no tokenizer.json, which jaxpipe reads" in printed
    assert "from transformers import AutoTokenizer as T" in printed
    assert main(words) == 2
    assert "holds step-00000000, and a run does not overwrite another" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_is_not_exported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["export", str(tmp_path), "-o", str(tmp_path / "out")]) == 2
    assert "has none" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["gemma2", "qwen3"])
def test_a_decoder_comes_in_and_goes_out_with_its_chat_template(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    config, given, run, out = KINDS[kind], *(tmp_path / name for name in ("given", "run", "out"))
    source = np.random.default_rng(0)
    drawn = {
        pair.ours: source.normal(size=pair.shape).astype(np.float32) for pair in llama_pairs(config)
    }
    write_model(given, config, lambda names: {name: drawn[name] for name in names})
    (given / "chat_template.jinja").write_text("{{ messages }}")
    assert main(["import", str(given), "-o", str(run)]) == 0
    assert load_config(run / "config.toml").model == config
    assert main(["export", str(run), "-o", str(out)]) == 0
    assert "from_pretrained" in capsys.readouterr().out
    before, after = (load_file(each / "model.safetensors") for each in (given, out))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"


def test_adapters_come_in_and_go_out(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    adapter, run, out = (tmp_path / name for name in ("adapter", "run", "out"))
    lora = LoraConfig(rank=2, alpha=3.0, targets=("attention.qkv",))
    source = np.random.default_rng(0)
    factors = {
        f"blocks.{layer}.attention.qkv.kernel{suffix}": source.normal(size=shape).astype(np.float32)
        for layer in range(2)
        for suffix, shape in ((LORA_A, (8, 2)), (LORA_B, (2, 3, 8)))
    }
    write_adapter(adapter, CONFIG, lora, lambda names: {n: factors[n] for n in names}, factors)
    assert main(["import", str(adapter), "-o", str(run)]) == 2
    assert "holds adapters of PEFT; give the folder of the model" in capsys.readouterr().err
    words = ["import", str(adapter), "--base", str(folder), "-o"]
    assert main([*words, str(folder)]) == 2
    assert "`--out` must be another folder than the model" in capsys.readouterr().err
    assert main([*words, str(run)]) == 0
    assert "adapters of rank 2 of attention.qkv; `train` continues" in capsys.readouterr().out
    assert load_config(run / "config.toml").lora == lora

    assert main(["export", str(run), "-o", str(out), "--adapter"]) == 0
    before, after = (load_file(each / "adapter_model.safetensors") for each in (adapter, out))
    assert before.keys() == after.keys()
    assert all(np.array_equal(before[name], after[name]) for name in before)
    fields = json.loads((out / "adapter_config.json").read_text())
    assert fields["base_model_name_or_path"] == str(folder)

    merged = tmp_path / "merged"
    assert main(["export", str(run), "-o", str(merged)]) == 0
    name = "transformer.h.1.attn.c_attn.weight"
    a, b = (before[f"base_model.model.{name[:-7]}.lora_{leaf}.weight"] for leaf in "AB")
    theirs = load_file(folder / "model.safetensors")[name] + 1.5 * (b @ a).T
    np.testing.assert_allclose(load_file(merged / "model.safetensors")[name], theirs, rtol=1e-5)


def test_adapters_alone_are_not_exported_where_the_model_has_changed(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    adapter, run = tmp_path / "adapter", tmp_path / "run"
    adapter.mkdir()
    fields = {"peft_type": "LORA", "r": 1, "target_modules": ["c_attn"], "lora_dropout": 0.5}
    (adapter / "adapter_config.json").write_text(json.dumps(fields))
    tensors: dict[str, np.ndarray] = {
        "base_model.model.transformer.ln_f.weight": np.full(8, 3, np.float32)
    }
    for layer in range(2):
        module = f"base_model.model.transformer.h.{layer}.attn.c_attn"
        tensors[f"{module}.lora_A.weight"] = np.ones((1, 8), np.float32)
        tensors[f"{module}.lora_B.weight"] = np.ones((24, 1), np.float32)
    save_file(tensors, adapter / "adapter_model.safetensors")
    assert main(["import", str(adapter), "--base", str(folder), "-o", str(run)]) == 0
    printed = capsys.readouterr().out
    assert "1 tensors of the model are those beside the adapters (transformer.ln_f.wei" in printed
    assert "`lora_dropout` (0.5) is not used" in printed
    out = tmp_path / "out"
    assert main(["export", str(run), "-o", str(out), "--adapter"]) == 2
    assert "`--adapter` needs the parameters of the base model" in capsys.readouterr().err
    assert main(["export", str(run), "-o", str(out)]) == 0
    assert (load_file(out / "model.safetensors")["transformer.ln_f.weight"] == 3).all()
