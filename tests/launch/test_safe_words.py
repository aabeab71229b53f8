"""Whatever the input: scripts hold the intended words, or the input is refused."""

import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TypeVar

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from jaxpipe.errors import ConfigError
from jaxpipe.launch import (
    Launch,
    SlurmMpi,
    docker_script,
    mpijob_manifest,
    mpirun_script,
    skypilot_tasks,
    slurm_script,
)
from jaxpipe.topo import Cluster
from tests.launch.golden_cases import launch_on

Made = TypeVar("Made")

NASTY = st.text(
    st.sampled_from("a B-_./:;'\"`$(){}|&<>*?#\\\n\r\t\x00\x1b\x85\u2028 %@!~=é"), max_size=12
)
WORDS = st.text(max_size=12) | NASTY
NAMES = NASTY | st.sampled_from(("HOSTS", "RANKS", "HOSTS_", "reboot", "localhost", "EOF"))
TIMES = NASTY | st.from_regex(re.compile(r"[0-9:-]{1,9}"), fullmatch=True)
IMAGES = st.from_regex(re.compile(r"[a-zA-Z0-9./:@_-]{1,9}"), fullmatch=True)
FOLDER, ARGUMENTS = "runs/plain", ("train", "plain.toml", "--set", "plain=1")


def unless_refused(make: Callable[[], Made]) -> Made | None:
    """Return what is made; None if the input is refused, with a message that a terminal shows."""
    try:
        return make()
    except (ConfigError, ValueError) as error:
        message = str(error)
    assert message.isprintable(), ascii(message)
    return None


@cache
def plain() -> Launch:
    launch = launch_on("two-region", stages=2, replicas=2)
    return replace(launch, folder=FOLDER, arguments=ARGUMENTS)


def renamed(cluster: Cluster, hosts: list[str], name: str) -> Cluster:
    """Return the cluster with other names, which the cluster checks."""
    new = dict(zip((host.name for host in cluster.hosts), hosts, strict=True))
    return replace(
        cluster,
        name=name,
        hosts=tuple(replace(host, name=new[host.name]) for host in cluster.hosts),
        devices=tuple(
            replace(device, name=f"{new[device.host]}:0", host=new[device.host])
            for device in cluster.devices
        ),
    )


def words(script: str) -> list[str]:
    """Return the words of a script, the content of here-documents among them."""
    lexer = shlex.shlex(script, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    return list(lexer)


@given(folder=WORDS, config=WORDS, setting=WORDS)
def test_folder_and_arguments_stay_words(folder: str, config: str, setting: str):
    arguments = ("train", config, "--set", setting)
    given = unless_refused(lambda: replace(plain(), folder=folder, arguments=arguments))
    assert (given is not None) == all(map(str.isprintable, (folder, config, setting)))
    if given is None:
        return
    intended = dict(zip((FOLDER, *ARGUMENTS), (folder, *arguments), strict=True))
    intended[f"folder={FOLDER}"] = f"folder={folder}"
    for make in (mpirun_script, batch_script, container_script, task_script):
        expected = [intended.get(word, word) for word in named_alike(words(make(plain())))]
        assert named_alike(words(make(given))) == expected


def batch_script(launch: Launch) -> str:
    return slurm_script(launch, time_limit="1:00")


def container_script(launch: Launch) -> str:
    manifest = yaml.safe_load(mpijob_manifest(launch, image="jaxpipe:1", claim="shared"))
    launcher = manifest["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    return launcher["containers"][0]["args"][0]


def task_script(launch: Launch) -> str:
    return yaml.safe_load(first_task(launch, image="jaxpipe:1"))["run"]


def first_task(launch: Launch, *, image: str) -> str:
    return next(iter(skypilot_tasks(launch, image=image).values()))


def named_alike(found: list[str]) -> list[str]:
    """Return the words with one name of the job, which follows from the folder."""
    return [re.sub(r"(--job-name=|--output=)[a-z0-9-]+?(-%j.out)?$", r"\1NAME\2", w) for w in found]


@given(hosts=st.lists(NAMES, min_size=4, max_size=4, unique=True), name=NAMES)
def test_names_stay_words(hosts: list[str], name: str):
    cluster = unless_refused(lambda: renamed(plain().cluster, hosts, name))
    if cluster is None:
        return
    given = replace(plain(), cluster=cluster)
    script = batch_script(given).splitlines()
    assert f"#SBATCH --nodelist={','.join(hosts)}" in script
    assert given.heading in script
    begin = next(i for i, line in enumerate(script) if line.startswith("cat > "))
    word = shlex.split(script[begin])[-1].removeprefix("<<")
    assert script[begin + 1 : script.index(word, begin + 1)] == hosts


def in_regions(cluster: Cluster, regions: list[str]) -> Cluster:
    """Return the cluster with other regions, of which the cluster checks the names."""
    new = dict(zip(cluster.regions, regions, strict=True))
    return replace(
        cluster,
        hosts=tuple(replace(host, region=new[host.region]) for host in cluster.hosts),
        devices=tuple(replace(d, region=new[d.region]) for d in cluster.devices),
    )


@given(regions=st.lists(NAMES, min_size=2, max_size=2, unique=True), name=NAMES)
def test_regions_stay_words_and_give_files_their_names(regions: list[str], name: str):
    hosts = [host.name for host in plain().cluster.hosts]
    cluster = unless_refused(lambda: renamed(in_regions(plain().cluster, regions), hosts, name))
    if cluster is None:
        return
    tasks = skypilot_tasks(replace(plain(), cluster=cluster), image="jaxpipe:1")
    assert len(tasks) == 2
    assert all(re.fullmatch(r"[a-z0-9][a-z0-9-]*\.yaml", file) for file in tasks)
    trees = [yaml.safe_load(text) for text in tasks.values()]
    assert {type(tree["name"]) for tree in trees} == {str}
    assert len({tree["name"] for tree in trees}) == 2
    first, plain_run = trees[0]["run"], task_script(plain())
    said = f"`ADDRESSES` must be those of 4 hosts: {regions[0]} 2, {regions[1]} 2"
    plain_said = "`ADDRESSES` must be those of 4 hosts: ohio 2, virginia 2"
    expected = [said if word == plain_said else word for word in words(plain_run)]
    assert words(first) == expected


@given(limit=TIMES)
def test_a_time_limit_is_one_word(limit: str):
    script = unless_refused(lambda: slurm_script(plain(), time_limit=limit))
    if script is None:
        return
    assert script.count(f"#SBATCH --time={limit}\n") == 1
    assert set(limit) <= set("0123456789:-")


@pytest.mark.parametrize("limit", ["90", "1:00", "12:00:00", "2-12", "2-12:00:00", "UNLIMITED"])
def test_slurms_forms_are_time_limits(limit: str):
    assert f"--time={limit}\n" in slurm_script(plain(), time_limit=limit, mpi=SlurmMpi.PMI2)


@pytest.mark.parametrize("limit", ["1:00\ntouch F", "tomorrow", "", "1:00 --exclusive", "1;reboot"])
def test_other_time_limits_are_refused(limit: str):
    with pytest.raises(ConfigError, match="`--time` must be minutes"):
        slurm_script(plain(), time_limit=limit)


@given(
    image=NASTY | st.from_regex(re.compile(r"[a-zA-Z0-9./:@_-]{1,9}"), fullmatch=True), claim=NASTY
)
def test_yaml_holds_the_names_that_were_given(image: str, claim: str):
    text = unless_refused(lambda: mpijob_manifest(plain(), image=image, claim=claim))
    if text is not None:
        assert in_manifest(text) == (image, claim, plain().name)


@given(image=NASTY | IMAGES)
def test_an_image_stays_one_word_of_tasks_and_scripts(image: str):
    text = unless_refused(lambda: first_task(plain(), image=image))
    script = unless_refused(lambda: docker_script(plain(), image=image))
    assert (text is None) == (script is None)
    if text is not None and script is not None:
        assert yaml.safe_load(text)["resources"] == {"image_id": f"docker:{image}"}
        assert shlex.split(script, comments=True)[-3:] == ["docker", "push", image]
        assert shlex.split(script, comments=True)[-5:-3] == [image, "."]


def in_manifest(text: str) -> tuple[str, str, str]:
    """Return image, claim and name, the only ones in the manifest."""
    tree = yaml.safe_load(text)
    pods = [each["template"]["spec"] for each in tree["spec"]["mpiReplicaSpecs"].values()]
    images = {pod["containers"][0]["image"] for pod in pods}
    claims = {pod["volumes"][0]["persistentVolumeClaim"]["claimName"] for pod in pods}
    assert [len(pod["containers"]) for pod in pods] == [1, 1]
    return images.pop(), claims.pop(), tree["metadata"]["name"]


@pytest.mark.parametrize("image", ["jaxpipe", "1.5", "on", "1:30", "a.example:50/b@sha256:0"])
@pytest.mark.parametrize("claim", ["shared", "null", "2026-11-22", "0x10"])
def test_names_that_yaml_could_misread_are_quoted(image: str, claim: str):
    launch = replace(plain(), folder="runs/yes")
    text = mpijob_manifest(launch, image=image, claim=claim)
    assert in_manifest(text) == (image, claim, "yes")


@pytest.mark.parametrize("image", ["a\nb", "a b", "", "-a", "a:", "{a}", "a #b"])
def test_other_images_are_refused(image: str):
    with pytest.raises(ConfigError, match="`--image` must be"):
        mpijob_manifest(plain(), image=image, claim="shared")


def test_a_host_may_be_called_like_the_end_of_the_hosts():
    hosts = ["HOSTS", "HOSTS_", "reboot", "x"]
    script = batch_script(replace(plain(), cluster=renamed(plain().cluster, hosts, "c")))
    assert "\n".join((*hosts, "HOSTS__", "export")) in script
