"""The side of `datasets`: a file of JSON lines, tokenized by `datasets.map` on all cores.

It is started with a Python that has datasets and transformers, and imports nothing of jaxpipe. The
request comes on standard input; the last line of standard output answers, as JSON.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def main(request: Mapping[str, Any]) -> dict[str, Any]:
    """Tokenize the file, save the dataset, and return its tokens, the first documents apart."""
    datasets, transformers = map(import_module, ("datasets", "transformers"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(request["tokenizer"])
    texts = datasets.load_dataset(
        "json", data_files=request["source"], split="train", cache_dir=request["cache"]
    )
    tokens = texts.map(
        lambda batch: {"input_ids": tokenizer(batch["text"])["input_ids"]},
        batched=True,
        num_proc=request["cores"],
        remove_columns=texts.column_names,
    )
    tokens.save_to_disk(request["out"])
    column = tokens.data.column("input_ids")
    return {
        "num_tokens": sum(len(chunk.values) for chunk in column.chunks),
        "documents": tokens[: request["shown"]]["input_ids"],
        "versions": {module.__name__: module.__version__ for module in (datasets, transformers)},
    }


if __name__ == "__main__":
    print(json.dumps(main(json.load(sys.stdin))))
