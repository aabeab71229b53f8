"""The drawings and listings that are kept as golden files.

`python -m tests.schedule.golden_cases` rewrites the files; read the difference before you commit.
"""

from pathlib import Path

from jaxpipe.schedule import (
    Schedule,
    count_stages,
    describe,
    eager_one_f_one_b,
    forward_only,
    gpipe,
    interleaved,
    lower,
    one_f_one_b,
    render,
    zb_h1,
    zb_h2,
)

FOLDER = Path(__file__).parent / "golden"


def listing(schedule: Schedule) -> str:
    """Return every program, one instruction to a line, with its stage where ranks hold several."""
    has_chunks = count_stages(schedule) > len(schedule)
    name = "rank" if has_chunks else "stage"
    return "\n".join(
        "\n".join(
            [
                f"{name} {rank}",
                *(
                    f"  stage {each.stage}: {describe(each)}"
                    if has_chunks
                    else f"  {describe(each)}"
                    for each in program
                ),
            ]
        )
        for rank, program in enumerate(schedule)
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
        "interleaved_4x4x2": render(interleaved(num_stages=8, num_microbatches=4, num_chunks=2)),
        "interleaved_2x4x3": render(
            interleaved(num_stages=6, num_microbatches=4, num_chunks=3), num_columns=200
        ),
        "zb_h1_4x8": render(zb_h1(num_stages=4, num_microbatches=8)),
        "zb_h2_4x8": render(zb_h2(num_stages=4, num_microbatches=8), num_columns=120),
        "zb_h1_2x2_lowered": listing(
            lower(zb_h1(num_stages=2, num_microbatches=2), tied=True, num_replicas=2)
        ),
        "interleaved_2x2x2_lowered": listing(
            lower(
                interleaved(num_stages=4, num_microbatches=2, num_chunks=2),
                tied=True,
                num_replicas=2,
            )
        ),
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
