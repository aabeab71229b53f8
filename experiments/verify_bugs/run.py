"""Plant each error into the ranks of its case, and write what the certificate says of it.

`python -m experiments.verify_bugs.run` writes `results/bugs.csv`: for each error, where the first
difference is and how large, or that none was found; with `none` for each case without an error.
"""

import os
import sys
from pathlib import Path

from experiments.table import Row, markdown, write_csv
from jaxpipe.runtime.process.quick_compiles import quick_flags

_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run all cases, or those whose names are given."""
    os.environ["XLA_FLAGS"] = quick_flags(os.environ.get("XLA_FLAGS", ""))
    from experiments.verify_bugs.planting import PACKED, SHARDED, UNLIKE

    rows = [row for case in sys.argv[1:] or (UNLIKE, SHARDED, PACKED) for row in _rows(case)]
    _RESULTS.mkdir(exist_ok=True)
    write_csv(rows, _RESULTS / "bugs.csv")
    print(markdown(rows))


def _rows(case: str) -> list[Row]:
    from experiments.verify_bugs.cases import case_reference
    from experiments.verify_bugs.planted import BUGS
    from experiments.verify_bugs.planting import PartlyRecompiled, planted
    from jaxpipe.runtime.stage.compile_once import CompileOnce
    from jaxpipe.verify.certificate import Certificate, compared

    def row(name: str, certificate: Certificate) -> Row:
        first = certificate.wrong[0] if certificate.wrong else None
        where = "" if first is None else f"{first.subject}, step {first.step + 1}"
        row = {
            "case": case,
            "error": name,
            "found": "no" if certificate.is_proved else "yes",
            "first difference": where or certificate.failure[:80],
            "size": 0.0 if first is None else first.error,
            "seconds": certificate.seconds,
        }
        print(row, flush=True)
        return row

    expected, known = case_reference(case), CompileOnce()
    rows = [row("none", compared(expected, compiler=known))]
    for bug in (bug for bug in BUGS if bug.case == case):
        with planted(bug):
            certificate = compared(expected, compiler=PartlyRecompiled(known, bug.compiled))
        rows.append(row(bug.name, certificate))
    return rows


if __name__ == "__main__":
    main()
