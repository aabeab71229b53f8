"""Logits of exports by `transformers` and PEFT: `readers.py TOKENS MERGED ADAPTER ...`, as JSON.

It is started with a Python that has torch, transformers and peft, and imports nothing of jaxpipe.
"""

import json
import sys
from importlib import import_module
from typing import Any


def main(tokens: str, *folders: str) -> None:
    """Print a line for each pair of folders: versions, logits, and what is generated."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    peft: Any = import_module("peft")
    torch.set_num_threads(1)
    rows = torch.asarray(json.loads(tokens))
    for merged, adapter in zip(folders[::2], folders[1::2], strict=True):
        eager = {"attn_implementation": "eager"}
        model = transformers.AutoModelForCausalLM.from_pretrained(merged, **eager)
        tuned = peft.AutoPeftModelForCausalLM.from_pretrained(adapter, **eager)
        with torch.no_grad():
            result = {
                "versions": [transformers.__version__, peft.__version__],
                "merged": model.float().eval()(rows).logits.tolist(),
                "adapter": tuned.float().eval()(rows).logits.tolist(),
                "end": model.generation_config.eos_token_id,
            }
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
