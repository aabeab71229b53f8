"""The side of PEFT, in a process of its own: `peft_side.py begin|train`, the request on stdin.

It is started with a Python that has torch, transformers, peft and gguf, and imports nothing of
jaxpipe. The last line of standard output answers, as JSON.
"""

import json
import sys
import time
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np


def begin(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the model of a GGUF file to a folder, and fresh adapters for it to another.

    The tokenizer is that of the file with what no GGUF has: the digits of SmolLM2 are pieces of
    their own, and its texts end as `tokenizer_config.json` of SmolLM2-Instruct says.
    """
    torch, transformers, peft = map(import_module, ("torch", "transformers", "peft"))
    gguf, folder = Path(request["gguf"]), request["model"]
    source = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    model = transformers.AutoModelForCausalLM.from_pretrained(**source).float()
    model.save_pretrained(folder)
    read = transformers.AutoTokenizer.from_pretrained(**source)
    backend, tokenizers = read.backend_tokenizer, import_module("tokenizers")
    parts = tokenizers.pre_tokenizers
    backend.pre_tokenizer = parts.Sequence(
        [parts.Digits(individual_digits=True), parts.ByteLevel(add_prefix_space=False)]
    )
    backend.decoder = tokenizers.decoders.ByteLevel()
    definition = {**json.loads(backend.to_str()), "post_processor": None, "normalizer": None}
    definition["model"] |= {"byte_fallback": False, "fuse_unk": False, "unk_token": None}
    names = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "pad_token": "<|im_end|>"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(json.dumps(definition)),
        chat_template=read.chat_template,
        **names,
    ).save_pretrained(folder)
    torch.manual_seed(0)
    config = peft.LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", **request["lora"])
    peft.get_peft_model(model, config).save_pretrained(request["adapter"])
    return {}


def train(request: Mapping[str, Any]) -> dict[str, Any]:
    """Train the adapters on the batches; return the loss and the seconds of each step."""
    torch, transformers, peft = map(import_module, ("torch", "transformers", "peft"))
    torch.set_num_threads(request["threads"])
    base = transformers.AutoModelForCausalLM.from_pretrained(request["model"])
    model = peft.PeftModel.from_pretrained(base, request["adapter"], is_trainable=True).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, **request["adamw"])
    batches = np.load(request["batches"])
    losses, seconds = [], []
    for step in range(len(batches["inputs"])):
        begun = time.perf_counter()
        tokens, targets, positions = (
            torch.asarray(batches[name][step]) for name in ("inputs", "targets", "positions")
        )
        # transformers starts a document, with a mask of its own, where position ids restart at 0.
        logits = model(input_ids=tokens, position_ids=positions, use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, request["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - begun)
    versions = {module.__name__: module.__version__ for module in (torch, transformers, peft)}
    return {"losses": losses, "seconds": seconds, "versions": versions}


if __name__ == "__main__":
    print(json.dumps({"begin": begin, "train": train}[sys.argv[1]](json.load(sys.stdin))))
