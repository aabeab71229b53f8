"""Exports run elsewhere without a hand edit, and replace a folder as a whole; what is read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ml_dtypes import bfloat16
from safetensors.numpy import load_file, save_file

from jaxpipe.cli import interchange
from jaxpipe.cli.main import main
from jaxpipe.errors import CheckpointError
from jaxpipe.interchange import begin_run, llama_pairs, model_folder, write_model
from jaxpipe.interchange.other_formats import way_in
from jaxpipe.interchange.replaced_folder import replaced_folder
from tests.oracles.llamas import GRANITE, PLAIN

BESIDE = {
    "chat_template.jinja": "{{ messages }}",
    "tokenizer.model": "pieces",
    "tokenizer_config.json": "{}",
    "additional_chat_templates/tool_use.jinja": "{{ tools }}",
}


def drawn(seed: int = 0) -> dict[str, np.ndarray]:
    source = np.random.default_rng(seed)
    return {
        pair.ours: source.normal(size=pair.shape).astype(np.float32) for pair in llama_pairs(PLAIN)
    }


def write(folder: Path, seed: int = 0) -> None:
    tensors = drawn(seed)
    write_model(folder, PLAIN, lambda names: {name: tensors[name] for name in names})


def change(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


@pytest.fixture
def given(tmp_path: Path) -> Path:
    """Return a folder as people have it: in bfloat16, with ids and files of its tokenizer."""
    folder = tmp_path / "given"
    write(folder)
    theirs = load_file(folder / "model.safetensors")
    short = {name: tensor.astype(bfloat16) for name, tensor in theirs.items()}
    save_file(short, folder / "model.safetensors", metadata={"format": "pt"})
    change(folder, eos_token_id=[7, 9], bos_token_id=3, torch_dtype="bfloat16", dtype="bfloat16")
    (folder / "additional_chat_templates").mkdir()
    for name, text in BESIDE.items():
        (folder / name).write_text(text)
    return folder


def test_an_export_keeps_what_the_import_had(given: Path, tmp_path: Path) -> None:
    run, out = tmp_path / "run", tmp_path / "out"
    assert main(["import", str(given), "-o", str(run)]) == 0
    assert main(["export", str(run), "-o", str(out)]) == 0
    fields = json.loads((out / "config.json").read_text())
    assert (fields["eos_token_id"], fields["bos_token_id"]) == ([7, 9], 3)
    assert "pad_token_id" not in fields  # as it was: the class has a default
    assert (fields["dtype"], fields["torch_dtype"]) == ("bfloat16", "bfloat16")
    assert json.loads((out / "generation_config.json").read_text())["eos_token_id"] == [7, 9]
    before, after = (load_file(folder / "model.safetensors") for folder in (given, out))
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert np.array_equal(after[name], tensor), name
    for name, text in BESIDE.items():
        assert (out / name).read_text() == text


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_format_is_an_option(given: Path, tmp_path: Path, dtype: str) -> None:
    assert main(["import", str(given), "-o", str(tmp_path / "run")]) == 0
    words = ["export", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--dtype", dtype]
    assert main(words) == 0
    tensors = load_file(tmp_path / "out" / "model.safetensors").values()
    assert {str(tensor.dtype) for tensor in tensors} == {dtype}


def test_weights_that_a_format_does_not_hold_are_named(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = load_file(given / "model.safetensors")
    theirs["model.norm.weight"][2] = 1e6
    save_file(theirs, given / "model.safetensors")
    assert main(["import", str(given), "-o", str(tmp_path / "run")]) == 0
    words = ["export", str(tmp_path / "run"), "-o", str(tmp_path / "out"), "--dtype", "float16"]
    assert main(words) == 2
    assert "`--dtype` float16 must hold all weights, and `model.norm" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_an_architecture_is_kept(tmp_path: Path) -> None:
    given, run, out = (tmp_path / name for name in ("given", "run", "out"))
    write(given)
    change(given, model_type="mistral", sliding_window=None, architectures=["MistralForCausalLM"])
    fields = json.loads((given / "config.json").read_text())
    for name in ("attention_bias", "mlp_bias"):
        fields.pop(name)
    (given / "config.json").write_text(json.dumps(fields))
    assert main(["import", str(given), "-o", str(run)]) == 0
    assert main(["export", str(run), "-o", str(out)]) == 0
    again = json.loads((out / "config.json").read_text())
    assert (again["model_type"], again["sliding_window"]) == ("mistral", None)


def test_no_file_of_another_model_stays(
    given: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The folder of the original has one file, and the export several."""
    run = tmp_path / "run"
    assert main(["import", str(given), "-o", str(run)]) == 0
    (given / "README.md").write_text("mine")
    (given / "adapter_config.json").write_text("{}")
    monkeypatch.setattr(model_folder, "FILE_BYTES", 4000)
    assert main(["export", str(run), "-o", str(given)]) == 0
    index = json.loads((given / "model.safetensors.index.json").read_text())
    shards = {path.name for path in given.glob("*.safetensors")}
    assert shards == set(index["weight_map"].values())
    assert len(shards) > 2
    assert (given / "README.md").read_text() == "mine"
    assert "README.md stays, for it is yours: no model card is" in capsys.readouterr().err
    assert not (given / "adapter_config.json").exists()
    monkeypatch.undo()
    assert main(["export", str(run), "-o", str(given)]) == 0
    assert [path.name for path in given.glob("*.safetensors*")] == ["model.safetensors"]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_export_that_fails_changes_nothing(given: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in given.iterdir() if path.is_file()}

    def fail() -> None:
        with replaced_folder(given) as folder:
            (folder / "config.json").write_text("new")
            raise CheckpointError("a tensor is missing")

    with pytest.raises(CheckpointError):
        fail()
    assert {path: path.read_bytes() for path in given.iterdir() if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


def test_an_export_that_is_interrupted_between_its_renames_changes_nothing(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = {path: path.read_bytes() for path in given.iterdir() if path.is_file()}
    rename = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if ".new-" in path.name:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt), replaced_folder(given) as folder:
        (folder / "config.json").write_text("new")
    assert {path: path.read_bytes() for path in given.iterdir() if path.is_file()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["given"]


@pytest.mark.parametrize("above", [".", ".."])
def test_the_working_directory_is_not_replaced(
    given: Path, above: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(given)
    with pytest.raises(CheckpointError, match="must not be the working directory"):
        replaced_folder(Path(above)).__enter__()
    assert (given / "config.json").exists()


@pytest.mark.parametrize("command", ["import", "export"])
def test_a_folder_is_not_its_own_output(
    command: str, given: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, str(given), "-o", f"{given}/../given"]) == 2
    assert "`--out` must be another folder than the" in capsys.readouterr().err


def test_fields_are_ignored_by_name(
    given: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(given, rotary_emb_base=3)
    words = ["import", str(given), "-o", str(tmp_path / "run")]
    assert main(words) == 2
    assert "`--ignore rotary_emb_base`" in capsys.readouterr().err
    assert main([*words, "--ignore", "rotary_emb_base"]) == 0


def test_a_base_belongs_to_adapters(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(given), "-o", "out", "--base", "org/model"]) == 2
    assert "`--base` must come with `--adapter`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("files", "words"),
    [
        (["pytorch_model-00001-of-00002.bin"], "a pickle of PyTorch .* save_pretrained"),
        (
            ["consolidated.00.pth", "params.json"],
            "Meta's own format .* convert_llama_weights_to_hf",
        ),
        (["x.pth"], "a pickle of PyTorch"),
        (["small.Q4_K_M.gguf"], "llama.cpp's format .* gguf_file="),
        (
            ["adapter_config.json", "adapter_model.safetensors"],
            "holds adapters of PEFT; .* `--base`",
        ),
        (["model.fp16.safetensors"], "variant of the weights alone .* variant="),
        (["model.fp16.safetensors.index.json", "model.fp16-00001-of-00002.safetensors"], "'fp16'"),
        (["tf_model.h5"], "weights of TensorFlow .* from_tf=True"),
        ([], "has no model.safetensors"),
    ],
)
def test_other_formats_are_named_with_the_way_in(
    files: list[str], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "given"
    folder.mkdir()
    for name in files:
        (folder / name).touch()
    for has_config in (False, True):
        if has_config:
            write(tmp_path / "model")
            (folder / "config.json").write_text((tmp_path / "model/config.json").read_text())
        assert main(["import", str(folder), "-o", str(tmp_path / "run")]) == 2
        told = " ".join(capsys.readouterr().err.split())
        assert "`FOLDER` must be a folder with config.json and model.safetensors" in told
        assert np.any([part in told for part in words.split(" .* ")]), told


def test_a_name_of_a_hub_is_not_downloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["import", "org/some-model", "-o", "run"]) == 2
    assert "hf download org/some-model --local-dir some-model" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert "is a file" in way_in(tmp_path / "file")


def test_an_own_model_has_the_end_of_its_tokenizer(tmp_path: Path) -> None:
    from jaxpipe.config import config_from, describe
    from jaxpipe.config.kept_inputs import keep_tokenizer
    from jaxpipe.runtime.checkpoint import StreamedTensor
    from jaxpipe.runtime.data import Bytes

    run, out = tmp_path / "run", tmp_path / "out"
    tree = interchange._tree(PLAIN, run=run, data=tmp_path)  # pyright: ignore[reportPrivateUsage]
    tensors = (StreamedTensor.of(name, tensor) for name, tensor in drawn().items())
    begin_run(run, tensors, describe(config_from(tree)))
    keep_tokenizer(Bytes(), run)
    assert main(["export", str(run), "-o", str(out)]) == 0
    fields = json.loads((out / "config.json").read_text())
    assert [fields[f"{name}_token_id"] for name in ("bos", "eos", "pad")] == [None, 0, None]
    assert fields["dtype"] == "float32"
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": 0}


def test_the_factors_of_a_granite_come_back(tmp_path: Path) -> None:
    tensors = drawn()
    write_model(tmp_path / "given", GRANITE, lambda names: {name: tensors[name] for name in names})
    assert main(["import", str(tmp_path / "given"), "-o", str(tmp_path / "run")]) == 0
    assert main(["export", str(tmp_path / "run"), "-o", str(tmp_path / "out")]) == 0
    one, other = (json.loads((tmp_path / n / "config.json").read_text()) for n in ("given", "out"))
    assert one == other
