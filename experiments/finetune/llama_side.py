"""Answers of llama.cpp, in a process of its own: `llama_side.py`, the request on stdin.

It is started with a Python that has llama_cpp, and imports nothing of jaxpipe. The last line of
standard output answers, as JSON.
"""

import json
import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def answers(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the greedy answer to each question, by the chat template of the GGUF file."""
    llama_cpp = import_module("llama_cpp")
    # Keys and values are kept in float16 by default, and jaxpipe computes in float32.
    float32 = llama_cpp.GGML_TYPE_F32
    adapter = {"lora_path": request["adapter"]} if request["adapter"] else {}
    model = llama_cpp.Llama(
        model_path=request["gguf"],
        n_ctx=request["context"],
        n_threads=request["threads"],
        type_k=float32,
        type_v=float32,
        verbose=False,
        **adapter,
    )
    texts = []
    for question in request["questions"]:
        reply = model.create_chat_completion(
            messages=[{"role": "user", "content": question}],
            max_tokens=request["num_tokens"],
            temperature=0.0,
            repeat_penalty=1.0,
        )
        texts.append(reply["choices"][0]["message"]["content"])
    return {"texts": texts, "version": llama_cpp.__version__}


if __name__ == "__main__":
    print(json.dumps(answers(json.load(sys.stdin))))
