"""The drawings and listings that are kept as golden files.

`python -m tests.schedule.golden_cases` rewrites the files; read the difference before you commit.
"""

from pathlib import Path

from jaxpipe.schedule import (
    Schedule,
    describe,
    eager_one_f_one_b,
    forward_only,
    gpipe,
    lower,
    one_f_one_b,
    render,
)

FOLDER = Path(__file__).parent / "golden"


def listing(schedule: Schedule) -> str:
    """Return every program, one instruction to a line."""
    return "\n".join(
        "\n".join([f"stage {stage}", *(f"  {describe(each)}" for each in program)])
        for stage, program in enumerate(schedule)
    )


def texts() -> dict[str, str]:
    """Return the text of each golden file by its name."""
    return {
        "gpipe_4x8": render(gpipe(num_stages=4, num_microbatches=8)),
        "1f1b_4x8": render(one_f_one_b(num_stages=4, num_microbatches=8)),
        "eager_1f1b_4x8": render(eager_one_f_one_b(num_stages=4, num_microbatches=8)),
        "eager_1f1b_4x8_warmup_6421": render(
            eager_one_f_one_b(num_stages=4, num_microbatches=8, warmup=(6, 4, 2, 1))
        ),
        "forward_only_4x8": render(forward_only(num_stages=4, num_microbatches=8)),
        "1f1b_1x3": render(one_f_one_b(num_stages=1, num_microbatches=3)),
        "1f1b_12x16_cut": render(one_f_one_b(num_stages=12, num_microbatches=16)),
        "1f1b_3x2_lowered": listing(
            lower(one_f_one_b(num_stages=3, num_microbatches=2), tied=True, num_replicas=2)
        ),
        "forward_only_2x2_lowered": listing(
            lower(forward_only(num_stages=2, num_microbatches=2), tied=True, num_replicas=2)
        ),
    }


if __name__ == "__main__":
    for name, text in texts().items():
        (FOLDER / f"{name}.txt").write_text(f"{text}\n", encoding="utf-8")
