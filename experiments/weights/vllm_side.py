"""Greedy tokens by vLLM of exported folders, as JSON: `vllm_side.py TOKENS FOLDER ...`.

It is started with a Python that has vLLM for CPUs, and imports nothing of jaxpipe. For each folder
a line with `logprobs` of all tokens after each prompt and `tokens` that continue it, or `error`.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any

CONTINUED = 12


def main(tokens: str, *folders: str) -> None:
    """Answer for all folders; the first line has the version."""
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
    vllm: Any = import_module("vllm")
    print(json.dumps({"version": vllm.__version__}), flush=True)
    for folder in folders:
        try:
            answer = _answer(vllm, folder, json.loads(tokens))
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:300]}
        print(json.dumps(answer), flush=True)


def _answer(vllm: Any, folder: str, rows: list[list[int]]) -> dict[str, Any]:
    model = vllm.LLM(
        folder,
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_logprobs=-1,
        enable_prefix_caching=False,
    )
    greedy = vllm.SamplingParams(
        temperature=0, max_tokens=CONTINUED, logprobs=-1, detokenize=False, ignore_eos=True
    )
    prompts = [{"prompt_token_ids": row} for row in rows]
    outputs = [output.outputs[0] for output in model.generate(prompts, greedy)]
    return {
        "tokens": [list(output.token_ids) for output in outputs],
        "logprobs": [
            [
                [places[number].logprob for number in range(len(places))]
                for places in output.logprobs
            ]
            for output in outputs
        ],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
