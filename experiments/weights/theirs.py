"""Logits by `transformers` for one `config.json` after the other, in a process of its own.

It is started with a Python that has torch and transformers, and imports nothing of jaxpipe. Each
line of standard input is an object with `folder`, which holds `config.json`, and `tokens`; a model
of these fields with random weights is saved there, and a line with `logits` or `error` answers.
With `adapter`, fields for PEFT's `LoraConfig`, and `changed`, fields that its file gets after it is
written, random adapters are saved in `adapter_folder`, and the logits are those of PEFT.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any


def main() -> None:
    """Answer all lines; the first line that is printed has the versions."""
    torch: Any = import_module("torch")
    transformers: Any = import_module("transformers")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    print(json.dumps({"transformers": transformers.__version__, "torch": torch.__version__}))
    for line in sys.stdin:
        case = json.loads(line)
        try:
            answer = {"logits": logits(torch, transformers, case["folder"], case["tokens"])}
            if "adapter" in case:
                answer = {"logits": adapted_logits(torch, transformers, case)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:200]}
        print(json.dumps(answer), flush=True)


def logits(torch: Any, transformers: Any, folder: str, tokens: list[list[int]]) -> Any:
    """Return the logits of a model with the fields of the folder, whose weights are saved there."""
    path = Path(folder)
    fields = (path / "config.json").read_text()
    config = transformers.AutoConfig.from_pretrained(path)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model = model.float().eval()
    with torch.no_grad():  # norms and biases that are all ones or zeros would show nothing
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    model.save_pretrained(path)
    (path / "config.json").write_text(fields)
    with torch.no_grad():
        return model(torch.asarray(tokens)).logits.tolist()


def adapted_logits(torch: Any, transformers: Any, case: dict[str, Any]) -> Any:
    """Return the logits of the model of the folder with random adapters, which are saved."""
    peft: Any = import_module("peft")

    def model() -> Any:
        return transformers.AutoModelForCausalLM.from_pretrained(
            case["folder"], attn_implementation="eager"
        ).float()

    folder = Path(case["adapter_folder"])
    tuned = peft.get_peft_model(model(), peft.LoraConfig(task_type="CAUSAL_LM", **case["adapter"]))
    with torch.no_grad():
        for parameter in tuned.parameters():
            if parameter.requires_grad:
                parameter.add_(0.1 * torch.randn_like(parameter))
    tuned.save_pretrained(folder)
    path = folder / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **case["changed"]}))
    read = peft.PeftModel.from_pretrained(model(), folder).eval()
    with torch.no_grad():
        return read(torch.asarray(case["tokens"])).logits.tolist()


if __name__ == "__main__":
    main()
