"""Verify each pair of settings that includes one setting, or see that the table excludes it.

`python -m tests.programs.verified_pairs FOLDER` writes `FOLDER/report.json`, for the setting whose
name `FOLDER/setting.txt` has: what came of each other setting, empty where all is right.
"""

import json
import sys
from pathlib import Path

from tests.config.pairs import PairVerifier, pairs_with


def main() -> None:
    """Write the report."""
    folder = Path(sys.argv[1])
    setting = (folder / "setting.txt").read_text(encoding="utf-8")
    verifier = PairVerifier()
    report = {other: verifier.fault(setting, other) for other in pairs_with(setting)}
    (folder / "report.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main()
