"""What `jaxpipe run --hosts` and `jaxpipe join` refuse before anything starts."""

import time
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
        (
            ["--hosts", "--set", "run.interface=nosuch0"],
            "`run.interface` must name an interface or a network of this host, is 'nosuch0'",
        ),
        (["--hosts", "--set", "run.interface=240.0.0.0/24,x1"], "is '240.0.0.0/24,x1'; it has"),
        (["--hosts", "--set", "run.interface=10.0.0.0/99"], "is '10.0.0.0/99'; it has"),
        (["--hosts", "--set", "run.interface=fd00::/64"], "the interface in place of fd00::/64"),
        (
            [
                "--hosts",
                "--set",
                "plan.cluster={clash}",
                "--set",
                "plan.replicas=1",
                "--set",
                "plan.devices=['a.x:0','a.y:0']",
            ],
            "`--hosts` starts ranks with Open MPI: `hosts` must differ before the first dot",
        ),
        (["--hosts", "--set", "run.compute=paced"], "`run.compute` is paced; set it to real"),
    ],
)
def test_a_run_over_hosts_refuses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], why: str
) -> None:
    config = tmp_path / "config.toml"
    config.write_text(toml_text(tiny_tree(tmp_path / "run", tmp_path)))
    clash = tmp_path / "clash.toml"
    hosts = "".join(f'[[hosts]]\nname = "{name}"\n' for name in ("a.x", "a.y"))
    links = "[inside_region]\nlatency_ms = 1\nbandwidth_gbps = 1\n"
    clash.write_text(f'name = "clash"\n{hosts}{links}')
    words = [word.replace("{clash}", str(clash)) for word in words]
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


SSHS = {
    "never answers": "exec sleep 1000",
    "asks for a password": "printf 'password: ' >&2; read answer; exec sleep 1000",
    "asks at the terminal": "read answer < /dev/tty || exec sleep 1000",
    "prints a banner": "echo Welcome; exec sleep 1000",
    "prints megabytes on a line": "head -c 3000000 /dev/zero | tr '\\0' x; exec sleep 1000",
    "prints for ever": "exec yes banner",
    "prints errors for ever": "exec yes banner >&2",
    "prints other bytes": "head -c 100000 /dev/urandom; exec sleep 1000",
    "answers byte by byte": "while :; do printf x; sleep 0.1; done",
    "dies": "exit 255",
    "says that all is well": "exit 0",
    "dies in the middle": "sleep 0.3; kill -9 $$",
    "is stopped": "kill -STOP $$",
    "ignores signals": "trap '' TERM INT HUP; while :; do sleep 1; done",
    "leaves children": "sleep 999 & setsid sleep 999 & exec sleep 1000",
    "dies and leaves children": "sleep 999 & setsid sleep 999 & exit 255",
    "leaves orphans": "(setsid sh -c 'sleep 999 & exec sleep 999' &); exec sleep 1000",
}


@pytest.mark.mpi
@pytest.mark.skipif("--oversubscribe" not in mpi_command(1), reason="Open MPI alone does that")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
@pytest.mark.parametrize("script", SSHS.values(), ids=SSHS)
def test_an_ssh_that_does_not_answer_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    agent = tmp_path / "ssh"
    agent.write_text(f"#!/bin/sh\n{script}\n")
    agent.chmod(0o755)
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(agent))
    monkeypatch.setenv("JAXPIPE_TEST", str(tmp_path))
    starter = Starter(folder=tmp_path, environment={})
    assert answering(starter, ["here", "other"], here="here", most_s=2.0) == ("here",)
    mark = f"JAXPIPE_TEST={tmp_path}".encode()
    left = ["unknown"]
    for _ in range(100):  # killed processes may need a moment to be gone
        left = [
            path.parent.name for path in Path("/proc").glob("[0-9]*/environ") if has(path, mark)
        ]
        if not left:
            break
        time.sleep(0.1)
    assert left == []


def has(environ: Path, mark: bytes) -> bool:
    try:
        return mark in environ.read_bytes().split(b"\0")
    except OSError:
        return False


@pytest.mark.mpi
@pytest.mark.skipif("--oversubscribe" not in mpi_command(1), reason="Open MPI alone does that")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")  # a worker may have JAX's threads
def test_a_host_without_a_name_does_not_answer_and_this_one_does(tmp_path: Path) -> None:
    starter = Starter(folder=tmp_path, environment={})
    hosts = ["here", "no-such-host.invalid"]
    assert answering(starter, hosts, here="here", most_s=10.0) == ("here",)
    assert answering(starter, [], here="here", most_s=10.0) == ()
