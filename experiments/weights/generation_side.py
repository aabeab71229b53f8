"""Greedy texts by `transformers`: `generation_side.py PROMPTS COUNT FOLDER`, as JSON.

It is started with a Python that has torch and transformers, and imports nothing of jaxpipe. Each
prompt is continued alone, by COUNT tokens, with a cache of keys and values and without.
"""

import json
import sys
from importlib import import_module
from typing import Any


def main(prompts: str, count: str, folder: str) -> None:
    """Print the version, and the texts with and without a cache."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager")
    model = model.float().eval()
    model.generation_config.eos_token_id = None  # each text has all tokens
    answer = {"transformers": transformers.__version__}
    for name, is_cached in (("cached", True), ("uncached", False)):
        answer[name] = []
        for prompt in json.loads(prompts):
            tokens = torch.asarray([prompt])
            text = model.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                max_new_tokens=int(count),
                do_sample=False,
                use_cache=is_cached,
                pad_token_id=0,
            )
            answer[name].append(text[0, len(prompt) :].tolist())
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
