"""Write a tiny instruct model and conversations for it: FOLDER/model and FOLDER/talk.jsonl.

The model has the files of a model of a hub: a `LlamaForCausalLM`, a byte-level tokenizer with the
special tokens of ChatML, and the chat template of SmolLM2-Instruct (Hugging Face, Apache 2.0). Its
weights are random, so it has learned no language.
"""

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from jaxpipe.interchange import ExportForm, llama_pairs, write_model
from jaxpipe.models import LlamaConfig

TALK = {
    "What is the capital of France?": "The capital of France is Paris.",
    "How are you?": "I am fine, thank you.",
}
REPEATS = 60
END = "<|im_end|>"
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", END]
TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + "
    "'<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def write_tokenizer(folder: Path) -> Tokenizer:
    """Train a tokenizer on the conversations, and write its files."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*TALK, *TALK.values(), TEMPLATE] * REPEATS, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    fields = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<|im_start|>",
        "eos_token": END,
        "pad_token": END,
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(fields, indent=2))
    return tokenizer


def write_random_model(folder: Path, tokenizer: Tokenizer) -> None:
    """Write `config.json` and random weights in safetensors."""
    config = LlamaConfig(
        num_layers=2,
        dim=64,
        num_heads=4,
        num_kv_heads=2,
        hidden=128,
        sequence=128,
        vocabulary=tokenizer.get_vocab_size(),
        tied=True,
    )
    shapes = {pair.ours: pair.shape for pair in llama_pairs(config)}
    source = np.random.default_rng(0)

    def drawn(name: str) -> np.ndarray:
        if "norm" in name:
            return np.ones(shapes[name], np.float32)
        deviation = 0.3 if name.startswith("embed") else 0.1
        return source.normal(0, deviation, shapes[name]).astype(np.float32)

    def read(names: Iterable[str]) -> Mapping[str, np.ndarray]:
        return {name: drawn(name) for name in names}

    tokens = {"bos_token_id": "<|im_start|>", "eos_token_id": END, "pad_token_id": END}
    ids = {name: tokenizer.token_to_id(token) for name, token in tokens.items()}
    write_model(folder, config, read, ExportForm(fields=ids))


def write_conversations(file: Path) -> None:
    """Write the conversations in the layout of ShareGPT."""
    records = [
        {"conversations": [{"from": "human", "value": asked}, {"from": "gpt", "value": said}]}
        for asked, said in TALK.items()
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records * REPEATS))


def main(folder: Path) -> None:
    """Write the model and the conversations."""
    model = folder / "model"
    model.mkdir(parents=True)
    write_random_model(model, write_tokenizer(model))
    write_conversations(folder / "talk.jsonl")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
