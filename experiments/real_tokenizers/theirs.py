"""Ids by `AutoTokenizer`, in a process of its own: `theirs.py FOLDER`, texts on standard input.

It is started with a Python that has transformers, and imports nothing of jaxpipe. Standard input is
an object with `texts` and `conversations`; the last line of standard output answers.
"""

import json
import sys
from importlib import import_module
from typing import Any

Turns = list[dict[str, Any]]


def main(folder: str) -> None:
    """Answer the request: ids of texts, and ids and what counts of conversations."""
    transformers: Any = import_module("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    request = json.load(sys.stdin)
    answer = {
        "transformers": transformers.__version__,
        "texts": [tokenizer(text)["input_ids"] for text in request["texts"]],
        "conversations": [],
    }
    if tokenizer.chat_template:
        answer["conversations"] = [shown(tokenizer, turns) for turns in request["conversations"]]
    print(json.dumps(answer))


def shown(tokenizer: Any, turns: Turns) -> dict[str, Any]:
    """Return the ids of a conversation, and whether each counts; or why the template refuses it.

    What counts is None where the template writes a turn in another form when others follow.
    """
    try:
        text = tokenizer.apply_chat_template(turns, tokenize=False)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:200]}
    spans = answers(tokenizer, turns, text)
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    counted = (
        None
        if spans is None
        else [
            any(begin < last and end > first for first, last in spans)
            for begin, end in encoded["offset_mapping"]
        ]
    )
    return {"ids": encoded["input_ids"], "counted": counted}


def answers(tokenizer: Any, turns: Turns, text: str) -> list[tuple[int, int]] | None:
    """Return the characters of each answer: behind the prompt for it, to the end of its turn."""
    spans = []
    for number, turn in enumerate(turns):
        if turn["role"] == "assistant":
            before = tokenizer.apply_chat_template(
                turns[:number], tokenize=False, add_generation_prompt=True
            )
            behind = tokenizer.apply_chat_template(turns[: number + 1], tokenize=False)
            if not text.startswith(before) or not text.startswith(behind):
                return None
            spans.append((len(before), len(behind)))
    return spans


if __name__ == "__main__":
    main(*sys.argv[1:])
