"""What MPI is told: hosts in the order of the ranks, and the agent that enters namespaces."""

import subprocess
from pathlib import Path
from unittest.mock import patch

import pytest

from jaxpipe import topo
from jaxpipe.topo.emulate.mpi import divided, mpi_settings
from jaxpipe.topo.emulate.owner import Owner

OWNER = Owner(pid=7, started=9)


def settings(folder: Path, devices: list[int]) -> dict[str, str]:
    cluster = topo.load("two-region")
    with patch.object(Owner, "folder", folder):
        return mpi_settings(OWNER, cluster, devices, control=1, cores=[0, 1, 2, 3])


def test_a_rank_runs_where_the_plan_puts_it(tmp_path: Path):
    told = settings(tmp_path, [3, 0, 2])
    openmpi = Path(told["PRTE_MCA_prte_default_hostfile"]).read_text()
    assert openmpi == "virginia-1\nohio-0\nvirginia-0\n"
    assert Path(told["HYDRA_HOST_FILE"]).read_text() == "virginia-1:1\nohio-0:1\nvirginia-0:1\n"


def test_a_device_is_not_there_or_there_twice(tmp_path: Path):
    with pytest.raises(ValueError, match="`devices` must name each device once"):
        settings(tmp_path, [1, 1])
    with pytest.raises(ValueError, match="rank 0 is on device 4"):
        settings(tmp_path, [4])


@pytest.mark.parametrize("options", [(), ("-x", "-q")])
def test_the_agent_enters_the_namespace_of_its_host(tmp_path: Path, options: tuple[str, ...]):
    agent = Path(settings(tmp_path, [0, 1, 2, 3])["PRTE_MCA_plm_ssh_agent"])
    said = agent.read_text().replace("exec ip", "echo ip")  # instead of doing it
    agent.write_text(said)
    done = subprocess.run(
        [str(agent), *options, "virginia-0", "A=1;prted", "--some 'words'"],
        capture_output=True,
        text=True,
        check=False,
    )
    entered = "ip netns exec jaxpipe-7-9-2 taskset -c 2 unshare --uts sh -c "
    assert done.stdout.startswith(entered)
    assert done.stdout.strip().endswith("virginia-0 A=1;prted --some 'words' 2")


def test_the_agent_refuses_an_unknown_host(tmp_path: Path):
    agent = settings(tmp_path, [0])["HYDRA_LAUNCHER_EXEC"]
    done = subprocess.run([agent, "tokyo-0", "x"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "no emulated host is called tokyo-0\n")


@pytest.mark.parametrize("num_cores", [1, 2, 3, 8])
@pytest.mark.parametrize("num_ranks", [1, 2, 5])
def test_cores_are_divided_evenly(num_cores: int, num_ranks: int):
    hosts = [f"host-{i}" for i in range(num_ranks)]
    chosen = divided(range(num_cores), hosts, hosts)
    each = max(1, num_cores // num_ranks)
    assert [len(mine) for mine in chosen] == [each] * num_ranks
    used = [core for mine in chosen for core in mine]
    assert max(map(used.count, used)) - min(map(used.count, used)) <= 1
