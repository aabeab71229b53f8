"""The table of families: each architecture that is imported, measured with both versions."""

import re
from pathlib import Path

import pytest

from docs.tools.families import RESULTS, VERSIONS, families_reference
from jaxpipe.interchange.architectures import ARCHITECTURES

ROOT = Path(__file__).parents[2]
COLUMNS = 5


@pytest.fixture(scope="module")
def rows() -> dict[str, list[str]]:
    lines = families_reference(ROOT).splitlines()[2:]
    cells = [line.strip("| ").split(" | ") for line in lines]
    return {kind.strip("`"): rest for kind, *rest in cells}


def test_every_architecture_is_measured_with_both_versions(rows: dict[str, list[str]]) -> None:
    assert rows.keys() == {*ARCHITECTURES, "gpt2"}
    for kind, cells in rows.items():
        *measured, converted, served = cells[COLUMNS - 1 :]
        assert len(measured) == len(VERSIONS), cells
        assert re.fullmatch(r"llama-cpp-python [\d.]+: merged [\d.]+e-[3-7]", converted), cells
        assert re.fullmatch(r"vllm [\d.]+: merged [\d.]+e-[5-7]|not measured", served), cells
        for version, cell in zip(VERSIONS, measured, strict=True):
            assert cell.startswith(f"{version}."), (kind, cell)
            # What differs by more than that is not the same model.
            numbers = [float(number) for number in re.findall(r"[\d.]+e-\d+", cell)]
            assert len(numbers) == (1 if "not measured" in cell else 3), (kind, cell)
            assert max(numbers) < 1e-5, (kind, cell)


def test_what_is_not_measured_says_so(tmp_path: Path) -> None:
    folder = tmp_path / RESULTS
    folder.mkdir(parents=True)
    for version in VERSIONS:
        for name, columns in (
            ("transformers", "architecture,transformers,largest_difference"),
            ("exports", "architecture,merged,adapter"),
        ):
            (folder / f"{name}-{version}.csv").write_text(f"{columns}\n")
    (folder / "transformers-4.csv").write_text(
        "architecture,transformers,largest_difference\nllama,4.57.3,1.0e-06\n"
    )
    (folder / "exports-llama-cpp.csv").write_text("architecture,llama_cpp_python,merged,error\n")
    (folder / "exports-vllm.csv").write_text("architecture,vllm,merged,tokens,error\n")
    llama = families_reference(tmp_path).splitlines()[2]
    measured = "4.57.3: import 1.0e-6, exports not measured"
    assert llama.endswith(f"| {measured} | not measured | not measured | not measured |")
