"""Memory and collectives of a stage on H200s: `python -m experiments.long_context.run`.

Nothing runs here: XLA's compiler for GPUs plans the memory of one device. The stage has 4 of the 32
layers of `llama-3.1-8b`, and computes one sequence in bfloat16.

Needs the extra `aot`.
"""

from pathlib import Path
from typing import Final

from experiments.progress import counted
from experiments.table import Row, markdown, write_csv
from jaxpipe.baselines.autoshard.hlo import run_python

_HERE: Final = Path(__file__).parent

_MESHES: Final = {
    "one device": {},
    "tensor 8": {"tensor": 8},
    "tensor 8, sequence parallel": {"tensor": 8, "sequence_parallel": True},
    "context 2": {"context": 2},
    "context 4": {"context": 4},
    "context 8": {"context": 8},
}

_CASES: Final = {
    "full": {
        "one device": (8, 16, 32),
        "tensor 8": (8, 32),
        "tensor 8, sequence parallel": (8, 32),
        "context 2": (32, 64),
        "context 4": (32, 128),
        "context 8": (128, 256, 512),
    },
    "none": {"tensor 8": (8,), "tensor 8, sequence parallel": (8,), "context 8": (8,)},
}
"""By what is recomputed, and by mesh: the lengths of sequences, in 1,024 tokens."""


def main() -> None:
    """Compile all cases, a process for each."""
    cases = [
        (mesh, length, remat)
        for remat, meshes in _CASES.items()
        for mesh, lengths in meshes.items()
        for length in lengths
    ]
    rows = []
    for mesh, length, remat in counted(cases, "compiled cases"):
        rows.append(_row(mesh, length, remat=remat))
    write_csv(rows, _HERE / "results" / "compiled.csv")
    print(markdown(rows))


def _row(mesh: str, length: int, *, remat: str) -> Row:
    request = {"mesh": _MESHES[mesh], "sequence": 1024 * length, "remat": remat}
    found = run_python(
        "experiments.long_context.compiled_stage",
        request,
        num_devices=1,
        path=_HERE.parents[1],
    )
    row: dict[str, str | int | float] = {
        "mesh of a rank": mesh,
        "tokens": 1024 * length,
        "remat": remat,
    }
    row["residuals, GB"] = f"{found['forward']['output_bytes'] / 1e9:.2f}"
    for part in ("forward", "backward"):
        collectives = found[part]["collectives"]
        row[f"{part}, GB"] = f"{found[part]['bytes'] / 1e9:.1f}"
        row[f"collectives, {part}"] = (
            ", ".join(f"{count} {kind}" for kind, count in sorted(collectives.items())) or "none"
        )
    return row


if __name__ == "__main__":
    main()
