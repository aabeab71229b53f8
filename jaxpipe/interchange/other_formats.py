"""What a folder holds that jaxpipe does not read, and the command that converts it.

Nothing of these files is opened: pickles execute what they hold.
"""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

_HUB_NAME: Final = re.compile(r"[\w.-]+/[\w.-]+")
_AUTO: Final = "from transformers import AutoModelForCausalLM as M, AutoTokenizer as T"


def way_in(folder: Path) -> str:
    """Return what is at a path that is no folder with `config.json` and safetensors, and a way in.

    >>> print(way_in(Path("org/some-model")))
    `FOLDER` must be a folder with config.json and model.safetensors, and org/some-model is none; \
nothing is downloaded: if it is the name of a model of a hub, run `hf download org/some-model \
--local-dir some-model` and give some-model
    """
    lead = "`FOLDER` must be a folder with config.json and model.safetensors, and"
    if not folder.exists():
        hub = str(folder)
        if not _HUB_NAME.fullmatch(hub):
            return f"{lead} {folder} does not exist; give the folder that `save_pretrained` wrote"
        name = folder.name
        return (
            f"{lead} {hub} is none; nothing is downloaded: if it is the name of a model of a hub, "
            f"run `hf download {hub} --local-dir {name}` and give {name}"
        )
    if (folder / "adapter_config.json").exists():
        return (
            f"{lead} {folder} holds adapters of PEFT; give the folder of the model that they are "
            "for, too, with `--base`"
        )
    if not folder.is_dir():
        return f"{lead} {folder} is a file; give the folder that `save_pretrained` wrote"
    for pattern, what, command in _FORMATS:
        files = sorted(folder.glob(pattern))
        if files:
            return (
                f"{lead} {folder} holds {what} ({files[0].name}); convert it with "
                f"`{command(folder, files[0].name)}` and give {_OUT}"
            )
    lacking = "config.json" if (folder / "model.safetensors").exists() else "model.safetensors"
    return f"{lead} {folder} has no {lacking}; give the folder that `save_pretrained` wrote"


_OUT: Final = "CONVERTED"


def _python(program: str) -> str:
    return f"python -c {shlex.quote(program)}"


def _resaved(folder: Path, option: str = "") -> str:
    source = str(folder)
    return _python(
        f"{_AUTO}; M.from_pretrained({source!r}{option}).save_pretrained({_OUT!r}); "
        f"T.from_pretrained({source!r}{option}).save_pretrained({_OUT!r})"
    )


def _of_gguf(folder: Path, file: str) -> str:
    return _resaved(folder, f", gguf_file={file!r}")


def _of_variant(folder: Path, file: str) -> str:
    parts = file.removesuffix(".json").removesuffix(".index").split(".")
    variant = parts[1].split("-")[0]
    return _python(
        f"{_AUTO}; M.from_pretrained({str(folder)!r}, variant={variant!r})"
        f".save_pretrained({_OUT!r})"
    )


def _of_meta(folder: Path, _: str) -> str:
    return (
        "python -m transformers.models.llama.convert_llama_weights_to_hf --input_dir "
        f"{shlex.quote(str(folder))} --output_dir {_OUT}"
    )


_FORMATS: Final[tuple[tuple[str, str, Callable[[Path, str], str]], ...]] = (
    ("pytorch_model*.bin", "weights as a pickle of PyTorch", lambda f, _: _resaved(f)),
    ("model.*.safetensors", "a variant of the weights alone", _of_variant),
    ("*.gguf", "weights in llama.cpp's format", _of_gguf),
    ("consolidated*.pth", "weights in Meta's own format", _of_meta),
    ("*.pth", "weights as a pickle of PyTorch", lambda f, _: _resaved(f)),
    ("*.bin", "weights as a pickle of PyTorch", lambda f, _: _resaved(f)),
    ("flax_model.msgpack", "weights of Flax", lambda f, _: _resaved(f, ", from_flax=True")),
    ("tf_model.h5", "weights of TensorFlow", lambda f, _: _resaved(f, ", from_tf=True")),
)
"""Files by their names, what they are, and the command that converts them."""
