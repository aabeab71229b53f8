"""Logits by `transformers`, in a process of their own: `theirs.py FOLDER TOKENS.npy LOGITS.npy`.

It is started with a Python that has torch and transformers, and imports nothing of jaxpipe.
"""

import sys
from importlib import import_module
from typing import Any

import numpy as np


def main(folder: str, tokens: str, logits: str) -> None:
    """Write the logits [batch, sequence, vocabulary], float32, and print the versions."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(torch.asarray(np.load(tokens).astype(np.int64))).logits
    np.save(logits, found.float().numpy())
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
