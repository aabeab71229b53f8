"""Greedy tokens by `transformers`, for another process: requests on stdin, results on stdout.

It is started with a Python that has torch and transformers, and imports nothing of jaxpipe. A
request is a line of JSON, `{"prompts": [[...], ...], "tokens": 100}`; its result has the seconds.
"""

import json
import sys
import time
from importlib import import_module
from typing import Any


def main(folder: str) -> None:
    """Answer requests until stdin ends."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    print(json.dumps({**versions, "threads": torch.get_num_threads()}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        prompts, number = torch.tensor(request["prompts"]), request["tokens"]
        begin_s = time.perf_counter()
        with torch.no_grad():
            texts = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=False,
                min_new_tokens=number,
                max_new_tokens=number,
                pad_token_id=0,
            )
        seconds = time.perf_counter() - begin_s
        found = texts[:, prompts.shape[1] :].tolist()
        print(json.dumps({"seconds": seconds, "tokens": found}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
