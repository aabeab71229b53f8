"""Logits by `transformers` for one `config.json` after the other, in a process of its own.

It is started with a Python that has torch and transformers, and imports nothing of jaxpipe. Each
line of standard input is an object with `folder`, which holds `config.json`, and `tokens`; a model
of these fields with random weights is saved there, and a line with `logits` or `error` answers.
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
            answer = {"logits": logits(torch, transformers, **case)}
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


if __name__ == "__main__":
    main()
