"""What `jaxpipe run --hosts` and `jaxpipe join` refuse before anything starts."""

from pathlib import Path

import pytest

from jaxpipe.cli.main import main
from jaxpipe.run.hosts.placed_job import Starter, answering
from jaxpipe.runtime.process.mpirun import launch_command
from jaxpipe.topo.toml_text import toml_text
from tests.helpers import mpi_command
from tests.runtime.training import tiny_tree


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--listen", "here:1"], "`--listen` ('here:1') needs `--hosts`; add it"),
        (["--hosts", "--listen", "here"], "`--listen` is 'here'; give HOST:PORT"),
        (["--hosts", "--listen", "a:65536"], "`--listen` is 'a:65536'"),
        (["--hosts", "--set", "run.survive=shrink"], "`run.survive` is shrink; set it to restart"),
        (["--hosts", "--set", "run.compute=paced"], "`run.compute` is paced; set it to real"),
    ],
)
def test_a_run_over_hosts_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(toml_text(tiny_tree(tmp_path / "run", tmp_path)))
    assert main(["run", str(config), *words]) == 2
    assert why in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["nowhere"], "`RUN` is 'nowhere'"),
        (["nowhere", "--timeout", "0"], "`--timeout` must be above 0"),
    ],
)
def test_a_join_refuses(capsys: pytest.CaptureFixture[str], words: list[str], why: str) -> None:
    assert main(["join", *words]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.mpi
@pytest.mark.skipif("--oversubscribe" not in mpi_command(1), reason="Open MPI alone does that")
def test_each_rank_has_the_host_of_its_line(tmp_path: Path) -> None:
    starter = Starter(folder=tmp_path, environment={})
    command = starter.command(["b", "a", "b"])
    assert command[command.index("-n") + 1] == "3"
    assert Path(command[command.index("--hostfile") + 1]).read_text() == "b\na\nb\n"
    assert "--oversubscribe" not in command
    assert "--hostfile" not in launch_command(command[0], num_ranks=3)


@pytest.mark.mpi
@pytest.mark.skipif("--oversubscribe" not in mpi_command(1), reason="Open MPI alone does that")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a worker may have JAX's threads
def test_a_host_without_a_name_does_not_answer_and_this_one_does(tmp_path: Path) -> None:
    starter = Starter(folder=tmp_path, environment={})
    hosts = ["here", "no-such-host.invalid"]
    assert answering(starter, hosts, here="here", most_s=10.0) == ("here",)
    assert answering(starter, [], here="here", most_s=10.0) == ()
