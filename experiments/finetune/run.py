"""Train, tune and count: `python -m experiments.finetune.run PART [--python PYTHON]`.

presets     the table of all presets for text: seconds, nothing is trained
pretrain    `llama-tiny` on CPython and Debian's documentation: about ten minutes
tune        adapters on French, over two emulated regions; export; transformers
optimizers  Muon beside AdamW, one grid of learning rates, three seeds: minutes
precision   bfloat16 beside float32, a GPT and a Llama, three seeds: minutes
peft        LoRA of SmolLM2-135M-Instruct beside transformers and PEFT; downloads 93 MB: minutes
llama       the exports of `peft` in llama.cpp; downloads 77 MB of its sources: a minute
"""

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.table import Row, markdown, write_csv

_HERE = Path(__file__).parent
_RESULTS = _HERE / "results"


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the tables of one part."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "part", choices=("presets", "pretrain", "tune", "optimizers", "precision", "peft", "llama")
    )
    parser.add_argument("--python", type=Path, help="a Python with torch and transformers")
    parser.add_argument("--steps", type=int, help="of `peft`, in place of those of the case")
    parser.add_argument("--rounds", type=int, help="of `peft`, likewise")
    parser.add_argument("--out", type=Path, default=_RESULTS, help="the folder of the tables")
    given = parser.parse_args(arguments)
    cases = tomllib.loads((_HERE / "cases.toml").read_text())
    cases["peft"] |= {
        name: number for name in ("steps", "rounds") if (number := getattr(given, name)) is not None
    }
    given.out.mkdir(parents=True, exist_ok=True)
    for name, rows in _tables(given.part, cases, given.python, given.out):
        write_csv(rows, given.out / f"{name}.csv")
        print(f"\n{markdown(rows)}", flush=True)


def _tables(
    part: str, cases: dict, python: Path | None, out: Path
) -> Iterator[tuple[str, Sequence[Row]]]:
    """Yield the tables of a part, each as soon as it is measured."""
    # Each imports what it needs: the table of presets does without jax.
    if part == "presets":
        from experiments.finetune.presets import rows

        yield "presets", list(rows(cases["presets"]))
    elif part == "optimizers":
        from experiments.finetune import optimizers

        runs = optimizers.trained(cases, out / "optimizers_curves.csv")
        yield "optimizers", runs
        yield "optimizers_summary", optimizers.summary(runs)
    elif part == "precision":
        from experiments.finetune import precision

        curves = out / "precision_curves.csv"
        yield "precision", precision.trained(cases["precision"], curves)
    elif part == "peft":
        from experiments.finetune import beside_peft

        if python is None:
            raise SystemExit("`--python` must name a Python with torch, transformers and peft")
        runs, losses = beside_peft.compare(cases["peft"], python)
        yield "peft_losses", losses
        yield "peft", runs
        yield "peft_exports", beside_peft.exports(cases["peft"], python)
    elif part == "llama":
        from experiments.finetune import in_llama_cpp

        if python is None:
            raise SystemExit("`--python` must name a Python with llama_cpp, torch and transformers")
        yield "llama", in_llama_cpp.compare(cases["peft"], python)
    else:
        from experiments.finetune.tune import pretrain, tune

        is_first = part == "pretrain"
        yield ("pretrained", [pretrain(cases)]) if is_first else ("tuned", tune(cases, python))


if __name__ == "__main__":
    main()
