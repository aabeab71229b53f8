"""Texts and scores by `transformers` for an exported folder, in a process of its own.

It is started with a Python that has torch, transformers and lm_eval, and imports nothing of
jaxpipe. Standard input is an object with `folder`, `questions`, `num_tokens`, `tasks` and
`task_folder`; the last line of standard output answers. A folder of adapters, which PEFT opens, has
a `tokenizer` in another one.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer the request."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    torch.set_num_threads(1)
    request = json.load(sys.stdin)
    answer = {
        "versions": {
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "lm_eval": version("lm_eval"),
        },
        "texts": texts(transformers, request),
        "scores": scores(request["folder"], request["tasks"], request["task_folder"]),
    }
    print(json.dumps(answer))


def texts(transformers: Any, request: Mapping[str, Any]) -> list[str]:
    """Return the greedy answer to each question, a message in the chat template of the folder."""
    folder, num_tokens = request["folder"], request["num_tokens"]
    tokenizer = transformers.AutoTokenizer.from_pretrained(request.get("tokenizer", folder))
    if Path(folder, "adapter_config.json").exists():
        model = import_module("peft").AutoPeftModelForCausalLM.from_pretrained(folder)
    else:
        model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    answers = []
    for question in request["questions"]:
        inputs = tokenizer.apply_chat_template(
            [{"role": "user", "content": question}],
            add_generation_prompt=True,
            return_tensors="pt",
            return_dict=True,
        )
        inputs.pop("token_type_ids", None)
        tokens = model.generate(**inputs, max_new_tokens=num_tokens, do_sample=False)
        new = tokens[0][inputs["input_ids"].shape[1] :]
        answers.append(tokenizer.decode(new, skip_special_tokens=True))
    return answers


def scores(folder: str, tasks: Sequence[str], task_folder: str) -> dict[str, Any]:
    """Return the results of the harness's own model of transformers, with and without a chat."""
    if not tasks:
        return {}
    import_module("lm_eval.models.huggingface")
    manager: Any = import_module("lm_eval.tasks").TaskManager
    return {
        str(chat): import_module("lm_eval.evaluator").simple_evaluate(
            model="hf",
            model_args={"pretrained": folder, "dtype": "float32"},
            tasks=list(tasks),
            task_manager=manager(include_path=task_folder, include_defaults=False),
            device="cpu",
            batch_size=1,
            apply_chat_template=chat,
            log_samples=False,
        )["results"]
        for chat in (False, True)
    }


if __name__ == "__main__":
    main()
