"""Logits by llama.cpp of exported folders: `llama_side.py SOURCES TOKENS FOLDER ...`.

It is started with a Python that has torch, transformers, sentencepiece and llama_cpp, and imports
nothing of jaxpipe. SOURCES are those of llama.cpp, whose `convert_hf_to_gguf.py` writes each folder
as a GGUF file in float32. That converter knows tokenizers by their hashes, and these models have
one of bytes: only their vocabulary is left out. For each folder a line with `logits` or `error`.
"""

import json
import sys
import tempfile
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def main(sources: str, tokens: str, *folders: str) -> None:
    """Answer for all folders; the first line has the version."""
    sys.path.insert(0, sources)
    converter: Any = import_module("convert_hf_to_gguf")
    llama_cpp = import_module("llama_cpp")
    print(json.dumps({"version": llama_cpp.__version__}))
    class_of = converter.get_model_class

    def without_vocabulary(architecture: str, **options: Any) -> Any:
        model_class = class_of(architecture, **options)
        model_class.set_vocab = _set_no_vocabulary
        return model_class

    converter.get_model_class = without_vocabulary
    for folder in folders:
        with tempfile.TemporaryDirectory() as place:
            path = str(Path(place) / "model.gguf")
            sys.argv = ["convert", folder, "--outtype", "f32", "--outfile", path]
            try:
                converter.main()
                answer = {"logits": _logits(llama_cpp, path, json.loads(tokens))}
            except (Exception, SystemExit) as error:
                answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def _set_no_vocabulary(model: Any) -> None:
    model.gguf_writer.add_tokenizer_model("none")
    model.gguf_writer.add_vocab_size(model.hparams["vocab_size"])


def _logits(llama_cpp: Any, path: str, rows: list[list[int]]) -> list[Any]:
    float32 = llama_cpp.GGML_TYPE_F32
    logits = []
    for row in rows:
        model = llama_cpp.Llama(
            model_path=path,
            n_ctx=64,
            n_threads=1,
            logits_all=True,
            type_k=float32,
            type_v=float32,
            verbose=False,
        )
        model.eval(row)
        logits.append(np.array(model.scores[: len(row)]).tolist())
        model.close()
    return logits


if __name__ == "__main__":
    main(*sys.argv[1:])
