"""Settings of Open MPI: chosen where nobody else has, in variables or in its own files."""

from pathlib import Path

import pytest

from jaxpipe.comm.mpi.open_mpi import chosen_settings

BTL = "OMPI_MCA_btl"
USER, SYSTEM = ".openmpi/mca-params.conf", "etc/openmpi-mca-params.conf"


def environment(folder: Path) -> dict[str, str]:
    """Return one whose home, and whose Open MPI, are in a folder."""
    return {"HOME": f"{folder}", "OPAL_PREFIX": f"{folder}", "PATH": f"{folder}"}


def test_what_nobody_has_set_is_chosen(tmp_path: Path) -> None:
    settings = chosen_settings(environment(tmp_path))
    assert settings[BTL] == "^ofi"
    assert all(name.startswith("OMPI_MCA_btl") for name in settings)


def test_a_variable_of_the_user_stays(tmp_path: Path) -> None:
    given = {**environment(tmp_path), BTL: "self,sm"}
    assert set(chosen_settings(given)) == set(chosen_settings(environment(tmp_path))) - {BTL}


@pytest.mark.parametrize("name", [USER, SYSTEM])
@pytest.mark.parametrize("line", ["btl = ^uct,ofi\n", "  btl=self,tcp", "# no\nbtl =\tself\n"])
def test_a_setting_in_a_file_stays(tmp_path: Path, name: str, line: str) -> None:
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text(line)
    assert BTL not in chosen_settings(environment(tmp_path))


@pytest.mark.parametrize("line", ["# btl = self\n", "btl_tcp_if_include = lo\n", "xbtl = self"])
def test_other_lines_set_nothing(tmp_path: Path, line: str) -> None:
    path = tmp_path / USER
    path.parent.mkdir()
    path.write_text(line)
    assert chosen_settings(environment(tmp_path))[BTL] == "^ofi"


def test_a_file_that_cannot_be_read_may_set_anything(tmp_path: Path) -> None:
    (tmp_path / USER).mkdir(parents=True)
    assert chosen_settings(environment(tmp_path)) == {}


def test_the_file_beside_the_launcher_is_read(tmp_path: Path) -> None:
    launcher = tmp_path / "mpi" / "bin" / "mpirun"
    launcher.parent.mkdir(parents=True)
    launcher.touch(mode=0o755)
    (tmp_path / "mpi" / "etc").mkdir()
    (tmp_path / "mpi" / SYSTEM).write_text("btl = self,tcp\n")
    linked = tmp_path / "bin" / "mpirun"
    linked.parent.mkdir()
    linked.symlink_to(launcher)
    for folder in (launcher.parent, linked.parent):
        assert BTL not in chosen_settings({"PATH": f"{folder}"})
