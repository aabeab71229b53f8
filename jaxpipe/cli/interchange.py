"""`jaxpipe import` and `jaxpipe export`: weights in the files of Hugging Face."""

import dataclasses
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import tyro

from jaxpipe.errors import ConfigError, DataError
from jaxpipe.models import ModelConfig, num_parameters
from jaxpipe.models.catalogue import FAMILY
from jaxpipe.run.folder.output_files import check_output_folder
from jaxpipe.run.terminal.console import console, errors, next_line
from jaxpipe.topo.toml_text import toml_text

if TYPE_CHECKING:  # they take long to import
    from jaxpipe.finetune import LoraConfig
    from jaxpipe.interchange import ExportForm, ImportRecord, ModelCard, TunedFiles
    from jaxpipe.runtime.checkpoint import Checkpoint
    from jaxpipe.runtime.data import Tokenizer

_HEAD = "# An imported model; edit `plan` and `train`."
_LONG = 2048


def import_model(
    folder: tyro.conf.Positional[Path],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    data: Path = Path("data/imported"),
    ignore: tuple[str, ...] = (),
    base: Path | None = None,
) -> int:
    """Begin a run with a model or adapters from files of Hugging Face's `save_pretrained`.

    Llama, Mistral, Qwen 2 and 3, Phi 3 and 4, OLMo 2, Granite, Gemma 1 to 3, SmolLM 3, GPT-2.
    Nothing is downloaded.

    Args:
        folder: the folder with config.json and model.safetensors, or several files and their
            index; with --base, that with adapter_config.json and adapter_model.safetensors.
        out: the folder of the run to begin.
        data: the dataset to train on; prepare it with the tokenizer of the model.
        ignore: fields of these files that jaxpipe does not know, and that change no logit.
        base: the folder of the model that the adapters of PEFT in FOLDER are for.
    """
    # Slow, as below; `--help` can do without.
    from jaxpipe.config import config_from, describe
    from jaxpipe.config.kept_inputs import TOKENIZER_FILE
    from jaxpipe.interchange import begin_run, keep_record, record_of

    if out.resolve() in {path.resolve() for path in (folder, base) if path is not None}:
        raise ConfigError(
            f"`--out` must be another folder than the model, {out}; name one for the run"
        )
    read = _read_files(folder, base, ignore)
    tree, path = _tree(read.model, run=out, data=data, lora=read.lora), out / "config.toml"
    # First: it refuses a folder with checkpoints, before a file of it is overwritten.
    begin_run(out, read.tensors, describe(config_from(tree)))
    path.write_text(f"{_HEAD}\n\n{toml_text(tree)}")
    source = folder if base is None or (folder / TOKENIZER_FILE).exists() else base
    tokenizer = _keep_tokenizer(source, out)
    keep_record(record_of(base or folder, replaced=read.replaced), out)
    size = num_parameters(read.model, layers=read.model.num_layers, embed=True, head=True)
    texts = ("--source", "TEXTS", "--tokenizer", tokenizer)
    console.print(
        f"{size:,} parameters, dropout 0\n{_adapter_text(read)}\n"
        f"configuration  {path}\ncheckpoint     {out / 'checkpoints'}\n\n"
        f"{next_line('data', 'prepare', '--out', data, *texts)}\n"
        f"      jaxpipe train {shlex.join((str(path), '--from', str(out)))}",
        markup=False,
    )
    return 0


def _read_files(folder: Path, base: Path | None, ignore: tuple[str, ...]) -> "TunedFiles":
    """Return a model, with adapters if there is a base for them."""
    from jaxpipe.interchange import TunedFiles, read_adapters, read_model

    if base is not None:
        return read_adapters(folder, base, ignored=ignore)
    model, tensors = read_model(folder, ignored=ignore)
    return TunedFiles(model=model, tensors=tensors)


def _keep_tokenizer(folder: Path, run: Path) -> str:
    """Copy the files of a tokenizer into a run; return what names it."""
    from jaxpipe.config.kept_inputs import TOKENIZER_FILE
    from jaxpipe.interchange import keep_beside
    from jaxpipe.runtime.data.dataset.tokenizer_files import (
        MODEL,
        read_tokenizer_files,
        write_tokenizer_files,
    )

    keep_beside(folder, run)
    if not (folder / TOKENIZER_FILE).exists():
        if (folder / MODEL).exists():
            program = f"T.from_pretrained({str(folder)!r}).save_pretrained({str(folder)!r})"
            program = f"from transformers import AutoTokenizer as T; {program}"
            errors.print(
                f"no {TOKENIZER_FILE}, which jaxpipe reads, in {folder}, but {MODEL}; "
                f"`python -c {shlex.quote(program)}` writes it",
                markup=False,
            )
        return "TOKENIZER.JSON"
    # After the others: two of its files may state what only `config.json` says.
    write_tokenizer_files(read_tokenizer_files(folder), run)
    return str(folder)


def _adapter_text(read: "TunedFiles") -> str:
    """Return lines about adapters, of which not all is trained as PEFT trains it."""
    if not read.lora.is_on:
        return ""
    lines = [
        f"adapters of rank {read.lora.rank} of {', '.join(read.lora.targets)}; `train` continues "
        "to train them"
    ]
    if read.replaced:
        lines.append(
            f"{len(read.replaced)} tensors of the model are those beside the adapters "
            f"({', '.join(read.replaced[:3])}); they are not trained"
        )
    if read.dropout:
        lines.append(f"`lora_dropout` ({read.dropout}) is not used: jaxpipe drops no inputs")
    return "".join(f"{line}\n" for line in lines)


def export(
    run: tyro.conf.Positional[Path],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"])],
    adapter: bool = False,
    dtype: Literal["float32", "bfloat16", "float16"] | None = None,
    base: str | None = None,
) -> int:
    """Write the newest checkpoint of a run for Hugging Face's `from_pretrained`.

    Adapters are merged into the model. Files of the tokenizer that an import has kept, such as its
    chat template, are copied as well, and so are the ids of its special tokens. A model card,
    README.md, says what was trained. A folder that exists is replaced as a whole; files in it that
    are no part of a model stay, and so does a README.md that is yours.

    Args:
        run: the folder of a run.
        out: the folder to write: config.json, safetensors and tokenizer.json.
        adapter: write the adapters alone, for PEFT: adapter_config.json and safetensors.
        dtype: the format of the tensors; by default that of the import, or else float32.
        base: with --adapter, the name or the folder of the model that the adapters are for; by
            default that of the import.
    """
    from jaxpipe.cli.export_card import card_of
    from jaxpipe.config import place_in
    from jaxpipe.interchange import ExportForm, read_record
    from jaxpipe.runtime.checkpoint import latest, open_checkpoint

    if base is not None and not adapter:
        raise ConfigError("`--base` must come with `--adapter`; add it, or leave out `--base`")
    if out.resolve() == run.resolve():
        raise ConfigError(f"`--out` must be another folder than the run, {run}; name another")
    checkpoint = open_checkpoint(latest(place_in(run)))
    record = read_record(run)
    form = ExportForm(
        kind=None if record is None else record.config.get("model_type"),
        dtype=dtype or ("float32" if record is None else record.dtype),
    )
    if adapter:
        _check_replaced(record)
        base = base or (None if record is None else record.base)
        card = card_of(checkpoint, run, out, base=base, dtype=form.dtype, is_adapter=True)
        call = _export_adapter(checkpoint, out, form, card, base=base)
    else:
        base = None if record is None else record.base
        card = card_of(checkpoint, run, out, base=base, dtype=form.dtype)
        call = _export_model(checkpoint, run, out, form, card)
    console.print(f"step {checkpoint.step} of {run} -> {out}\nnext: {call}", markup=False)
    return 0


def _check_replaced(record: "ImportRecord | None") -> None:
    if record is not None and record.replaced:
        raise ConfigError(
            f"`--adapter` needs the parameters of the base model, and the import has others of "
            f"{', '.join(record.replaced[:3])} ({len(record.replaced)} in all); leave it out, to "
            "export the merged model"
        )


def _export_model(
    checkpoint: "Checkpoint",
    run: Path,
    out: Path,
    form: "ExportForm",
    card: "ModelCard | None",
) -> str:
    """Write the model and its tokenizer; return the call that reads them."""
    from jaxpipe.config import keep_tokenizer, read_merged, saved_model, tokenizer_of
    from jaxpipe.interchange import (
        BESIDE,
        CARD,
        GENERATION,
        keep_beside,
        read_record,
        replaced_folder,
        special_tokens,
        write_card,
        write_generation,
        write_model,
    )

    model = saved_model(checkpoint)
    names = ("config.json", "model.safetensors", "tokenizer.json", *BESIDE)
    check_output_folder("--out", out, names if card is None else (*names, CARD))
    try:
        tokenizer = tokenizer_of(checkpoint)
    except DataError as error:
        errors.print(f"no tokenizer.json: {error}", markup=False)
        tokenizer = None
    fields = special_tokens(read_record(run), () if tokenizer is None else _separator(tokenizer))
    with replaced_folder(out, names) as folder:
        form = dataclasses.replace(form, fields=fields)
        name = write_model(folder, model, read_merged(checkpoint), form)
        if tokenizer is not None:
            keep_tokenizer(tokenizer, folder)
        if GENERATION not in keep_beside(run, folder):
            write_generation(folder, fields)
        if card is not None:
            write_card(folder, card)
    return f"transformers.{name}.from_pretrained({str(out)!r})"


def _separator(tokenizer: "Tokenizer") -> tuple[int, ...]:
    """Return the tokens that end a document; those of bytes, if a run keeps them as pairs."""
    from jaxpipe.runtime.data import Bytes
    from jaxpipe.runtime.data.dataset.byte_pairs import same_tokens

    return (Bytes() if same_tokens(tokenizer, Bytes()) else tokenizer).frame.separator


def _export_adapter(
    checkpoint: "Checkpoint",
    out: Path,
    form: "ExportForm",
    card: "ModelCard | None",
    *,
    base: str | None,
) -> str:
    """Write the adapters; return the call that reads them."""
    from jaxpipe.config import has_adapters, saved_lora, saved_model
    from jaxpipe.interchange import (
        ADAPTER_CONFIG,
        ADAPTER_WEIGHTS,
        CARD,
        replaced_folder,
        write_adapter,
        write_card,
    )

    model, lora = saved_model(checkpoint), saved_lora(checkpoint)
    if not has_adapters(checkpoint):
        raise ConfigError(
            f"`--adapter` needs a run that trained adapters, and {checkpoint.folder} has none; "
            "leave out the option, or train with the section `lora`"
        )
    names = (ADAPTER_CONFIG, ADAPTER_WEIGHTS)
    check_output_folder("--out", out, names if card is None else (*names, CARD))
    with replaced_folder(out) as folder:
        write_adapter(
            folder, model, lora, checkpoint.read, checkpoint.tensors, form=form, base=base
        )
        if card is not None:
            write_card(folder, card)
    if base is None:
        errors.print(
            "no base model in adapter_config.json: give its name or folder with --base",
            markup=False,
        )
        return f"peft.PeftModel.from_pretrained(MODEL, {str(out)!r})"
    return f"peft.AutoPeftModelForCausalLM.from_pretrained({str(out)!r})"


def _tree(
    model: ModelConfig, *, run: Path, data: Path, lora: "LoraConfig | None" = None
) -> dict[str, dict[str, Any]]:
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
        **({"lora": msgspec.to_builtins(lora)} if lora is not None and lora.is_on else {}),
        "optimizer": {"learning_rate": 3e-5},
    }
