"""`jaxpipe import` and `jaxpipe export`: weights in the files of Hugging Face."""

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import Annotated, Any

import msgspec
import tyro

from jaxpipe.errors import ConfigError, DataError
from jaxpipe.models import ModelConfig, num_parameters
from jaxpipe.models.catalogue import FAMILY
from jaxpipe.run.folder.output_files import check_output_folder
from jaxpipe.run.terminal.console import console, errors, next_line
from jaxpipe.topo.toml_text import toml_text

_HEAD = "# An imported model; edit `plan` and `train`."
_LONG = 2048


def import_model(
    folder: tyro.conf.Positional[Path],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    data: Path = Path("data/imported"),
) -> int:
    """Begin a run with a model from the files of Hugging Face's `save_pretrained`.

    GPT-2, Llama, Mistral, Qwen 2 and 3, and Gemma 2. Nothing is downloaded.

    Args:
        folder: the folder with config.json and model.safetensors, or several files and their index.
        out: the folder of the run to begin.
        data: the dataset to train on; prepare it with the tokenizer.json of the model.
    """
    # Slow, as below; `--help` can do without.
    from jaxpipe.config import config_from, describe
    from jaxpipe.config.kept_inputs import TOKENIZER_FILE
    from jaxpipe.interchange import begin_run, keep_beside, read_model

    model, tensors = read_model(folder)
    tree, path = _tree(model, run=out, data=data), out / "config.toml"
    # First: it refuses a folder with checkpoints, before a file of it is overwritten.
    begin_run(out, tensors, describe(config_from(tree)))
    path.write_text(f"{_HEAD}\n\n{toml_text(tree)}")
    given = folder / TOKENIZER_FILE
    tokenizer = str(given) if given.exists() else "TOKENIZER.JSON"
    if given.exists():
        shutil.copyfile(given, out / TOKENIZER_FILE)
    keep_beside(folder, out)
    size = num_parameters(model, layers=model.num_layers, embed=True, head=True)
    texts = ("--source", "TEXTS", "--tokenizer", tokenizer)
    console.print(
        f"{size:,} parameters, dropout 0\n\n"
        f"configuration  {path}\ncheckpoint     {out / 'checkpoints'}\n\n"
        f"{next_line('data', 'prepare', '--out', data, *texts)}\n"
        f"      jaxpipe train {shlex.quote(str(path))} --resume",
        markup=False,
    )
    return 0


def export(
    run: tyro.conf.Positional[Path],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    adapter: bool = False,
) -> int:
    """Write the newest checkpoint of a run for Hugging Face's `from_pretrained`.

    Adapters are merged into the model. Files of the tokenizer that an import has kept, such as its
    chat template, are copied as well.

    Args:
        run: the folder of a run.
        out: the folder to write: config.json, safetensors and tokenizer.json.
        adapter: write the adapters alone, for PEFT: adapter_config.json and safetensors.
    """
    if adapter:
        return _export_adapter(run, out)
    from jaxpipe.config import keep_tokenizer, place_in, read_merged, saved_model, tokenizer_of
    from jaxpipe.interchange import BESIDE, keep_beside, write_model
    from jaxpipe.runtime.checkpoint import latest, open_checkpoint

    checkpoint = open_checkpoint(latest(place_in(run)))
    model = saved_model(checkpoint)
    names = ("config.json", "model.safetensors", "tokenizer.json", *BESIDE)
    check_output_folder("--out", out, names)
    name = write_model(out, model, read_merged(checkpoint))
    try:
        keep_tokenizer(tokenizer_of(checkpoint), out)
    except DataError as error:
        errors.print(f"no tokenizer.json: {error}", markup=False)
    keep_beside(run, out)
    console.print(
        f"step {checkpoint.step} of {run} -> {out}\n"
        f"next: transformers.{name}.from_pretrained({str(out)!r})",
        markup=False,
    )
    return 0


def _export_adapter(run: Path, out: Path) -> int:
    from jaxpipe.config import place_in, saved_lora, saved_model
    from jaxpipe.interchange import ADAPTER_CONFIG, ADAPTER_WEIGHTS, write_adapter
    from jaxpipe.runtime.checkpoint import latest, open_checkpoint

    checkpoint = open_checkpoint(latest(place_in(run)))
    model, lora = saved_model(checkpoint), saved_lora(checkpoint)
    if not lora.is_on or checkpoint.step == 0:
        raise ConfigError(
            f"`--adapter` needs a run that trained adapters, and {checkpoint.folder} has none; "
            "leave out the option, or train with the section `lora`"
        )
    check_output_folder("--out", out, (ADAPTER_CONFIG, ADAPTER_WEIGHTS))
    write_adapter(out, model, lora, checkpoint.read, checkpoint.tensors)
    console.print(
        f"step {checkpoint.step} of {run} -> {out}\n"
        f"next: peft.PeftModel.from_pretrained(MODEL, {str(out)!r})",
        markup=False,
    )
    return 0


def _tree(model: ModelConfig, *, run: Path, data: Path) -> dict[str, dict[str, Any]]:
    """Return a configuration with one stage, for users to edit."""
    plain = msgspec.to_builtins(model)  # names in place of enumerations
    fields = {
        field.name: plain[field.name]
        for field in dataclasses.fields(model)
        # The file states what is special, and the family.
        if getattr(model, field.name) != field.default or field.name == FAMILY
    }
    train = {"batch": 8}
    if model.sequence > _LONG:  # what a model can read is more than most texts and memories have
        train["sequence"] = _LONG
    return {
        "run": {"folder": str(run)},
        "data": {"folder": str(data)},
        "model": fields,
        "plan": {"cluster": "laptop", "stages": 1, "replicas": 1, "microbatch": 1},
        "train": train,
        "optimizer": {"learning_rate": 3e-5},
    }
