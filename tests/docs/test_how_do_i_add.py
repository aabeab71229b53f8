"""Follow *How do I add* in a copy of the packages: what is added is found, executed and right.

Each addition is one file and one line, with its import. Programs run in a process that imports the
copy, and return their results as JSON.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.training import tiny_tree

pytestmark = pytest.mark.slow

_PROJECT = Path(__file__).resolve().parents[2]


class CopiedPackages:
    """The packages of the project in a folder of their own, to which a test adds."""

    def __init__(self, folder: Path):
        self._folder = folder
        ignored = shutil.ignore_patterns("tests", "*.pyc")
        shutil.copytree(_PROJECT / "jaxpipe", folder / "jaxpipe", ignore=ignored)

    def add(self, path: str, text: str) -> None:
        """Write a new file."""
        file = self._folder / path
        assert not file.exists(), file
        file.write_text(text)

    def name(self, path: str, module: str, *, after: str, line: str) -> None:
        """Add the import of the new file, and one documented line after another one."""
        file = self._folder / path
        text = file.read_text()
        assert text.count(after) == 1, after
        first_import = text.index("\nfrom jaxpipe")
        text = text.replace(after, f'{after}\n    {line}\n    """Added by a test."""')
        file.write_text(f"{text[:first_import]}\n{module}{text[first_import:]}")

    def run(self, program: str, **arguments: Any) -> Any:
        """Return what a program assigns to `result`, in a process that imports the copy."""
        source = (
            "import json, sys, pathlib, jaxpipe\n"
            "assert pathlib.Path(jaxpipe.__file__).is_relative_to(sys.argv[1]), jaxpipe.__file__\n"
            f"arguments = json.loads(sys.argv[2])\n{program}\nprint(json.dumps(result))\n"
        )
        process = subprocess.run(
            [sys.executable, "-c", source, str(self._folder), json.dumps(arguments)],
            cwd=self._folder,
            env={**os.environ, "PYTHONPATH": str(self._folder), "JAX_PLATFORMS": "cpu"},
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture
def packages(tmp_path: Path) -> CopiedPackages:
    """Return a copy of the packages."""
    (tmp_path / "copy").mkdir()
    return CopiedPackages(tmp_path / "copy")


_SCHEDULE = '''"""One microbatch after the other: no overlap, the memory of one microbatch."""

from jaxpipe.schedule.generators.schedule_facts import ScheduleFacts
from jaxpipe.schedule.instruction import Schedule, backward, forward


def one_by_one(*, num_stages: int, num_microbatches: int) -> Schedule:
    """Return the compute instructions: a backward right after each forward."""
    return tuple(
        tuple(
            instruction
            for microbatch in range(num_microbatches)
            for instruction in (forward(stage, microbatch), backward(stage, microbatch))
        )
        for stage in range(num_stages)
    )


ONE_BY_ONE = ScheduleFacts(generate=one_by_one)
'''

_FIND_SCHEDULE = """
import numpy as np
from jaxpipe.plan.cost import flop_profile
from jaxpipe.search import Fixed, Task, search
from jaxpipe.search.build_plan import first_schedules
from jaxpipe.simulate import Conditions, plan_step_s
from jaxpipe.topo import load
cluster = load("homogeneous:hosts=2")
profile = flop_profile(
    num_layers=2, layer_flop=1e12, layer_parameters=1000, layer_kept_bytes=1000,
    activation_bytes=1000, flops_per_s=1e12,
)
task = Task(
    cluster=cluster, profile=profile, batch=4,
    fixed=Fixed(stages=2, replicas=1, microbatch=1),
)
conditions = Conditions(
    cluster=cluster, profile=profile, slow=np.ones(len(cluster)), gradient_bytes=4
)
found = search(task, lambda plan: plan_step_s(plan, conditions))
result = {
    "alternatives": [each.name for each in found.of_choice("schedule") if each.trial.lacking == 0],
    "ranked in closed form": list(first_schedules(task, num_stages=2)),
}
"""

_TRAIN = """
from jaxpipe.config import config_from
from jaxpipe.run.rank.threads import train
losses = {}
for name, tree in arguments.items():
    losses[name] = []
    train(config_from(tree), observe=lambda step: losses[name].append(step.loss))
result = losses
"""


def test_a_schedule(packages: CopiedPackages, tmp_path: Path, dataset: Path) -> None:
    packages.add("jaxpipe/schedule/generators/one_by_one.py", _SCHEDULE)
    packages.name(
        "jaxpipe/schedule/generators/registry.py",
        "from jaxpipe.schedule.generators.one_by_one import ONE_BY_ONE",
        after='twice the memory of 1F1B."""',
        line='ONE_BY_ONE = "one-by-one", ONE_BY_ONE',
    )
    for use, names in packages.run(_FIND_SCHEDULE).items():
        assert "one-by-one" in names, use
    split = {"stages": 3, "replicas": 1, "schedule": "one-by-one"}
    alone = {"stages": 1, "replicas": 1}
    losses = packages.run(
        _TRAIN,
        split=tiny_tree(tmp_path / "split", dataset, plan=split),
        alone=tiny_tree(tmp_path / "alone", dataset, plan=alone),
    )
    assert len(losses["split"]) > 0
    assert losses["split"] == pytest.approx(losses["alone"], rel=1e-5)


_ALL_REDUCE = '''"""A chain from the last rank to the first, and back."""

from jaxpipe.collective.all_reduce_facts import AllReduceFacts
from jaxpipe.collective.sync_tree import chain, ranks
from jaxpipe.collective.tree import tree_phases

BACKWARD_CHAIN = AllReduceFacts(
    phases=lambda tree: tree_phases(chain(ranks(tree)[::-1])), sends_whole_chunks=True
)
'''

_FIND_ALL_REDUCE = """
import numpy as np
from jaxpipe.collective import AllReduceKind
from jaxpipe.comm import all_reduce, run_ranks
from jaxpipe.plan import PlanConfig, default_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.plan.cost.collective_cost import all_reduce_s
from jaxpipe.network.alpha_beta import uniform_links
from jaxpipe.simulate import fastest_all_reduce
from jaxpipe.topo import Cluster, Device

# Three hosts in a line: what does not go along the line takes a hundred times as long.
rate = np.array([[np.inf, 1e8, 1e6], [1e8, np.inf, 1e8], [1e6, 1e8, np.inf]])
devices = tuple(Device(name=f"d{n}", host=f"h{n}", region="r") for n in range(3))
cluster = Cluster(
    name="line", devices=devices, latency_s=np.zeros((3, 3)), bandwidth_bytes_per_s=rate
)
plan = default_plan(
    PlanConfig(stages=1, replicas=3, microbatch=1, schedule=ScheduleKind.GPIPE),
    cluster,
    num_layers=1,
    batch=3,
    tied=False,
)
kind, seconds = fastest_all_reduce(plan, cluster, segment_bytes=(1e6,), embed_bytes=0.0)
sums = run_ranks(
    3,
    lambda transport: all_reduce(
        transport, np.arange(5.0) * 10**transport.rank, (0, 1, 2), tag=0, timeout_s=60.0,
        algorithm=kind,
    ),
)
links = uniform_links(3, latency_s=1.0, bandwidth_bytes_per_s=1.0)
result = {
    "kind": str(kind),
    "sums": [each.tolist() for each in sums],
    "closed_s": all_reduce_s(kind, links, (0, 1, 2), num_bytes=1.0),
}
"""


def test_an_all_reduce(packages: CopiedPackages) -> None:
    packages.add("jaxpipe/collective/backward_chain.py", _ALL_REDUCE)
    packages.name(
        "jaxpipe/collective/kinds.py",
        "from jaxpipe.collective.backward_chain import BACKWARD_CHAIN",
        after='"""Reduce along the ranks and broadcast back, in chunks; for equal, long links."""',
        line='BACKWARD_CHAIN = "backward-chain", BACKWARD_CHAIN',
    )
    result = packages.run(_FIND_ALL_REDUCE)
    assert result["kind"] == "backward-chain"
    assert result["sums"] == [[0.0, 111.0, 222.0, 333.0, 444.0]] * 3
    # Without a closed form of its own: four messages of a second each, and its latency.
    assert result["closed_s"] == 8.0


_CODEC = '''"""One bit per value: the sign, and the mean magnitude of a message."""

from dataclasses import dataclass

import numpy as np

from jaxpipe.collective.codec.aligned import aligned_empty
from jaxpipe.collective.codec.codec_facts import CodecFacts, CodecLimit, Coding


@dataclass(frozen=True, slots=True)
class SignCodec:
    """Keeps the sign of each value."""

    def num_bytes(self, *, size: int) -> int:
        """Return the encoded size of `size` values, in bytes."""
        return 4 + -(-size // 8)

    def encode(self, values: np.ndarray) -> np.ndarray:
        """Return the bytes, in fresh memory."""
        mean = np.float32(np.abs(values).mean() if values.size else 0.0)
        return np.concatenate((np.array([mean]).view(np.uint8), np.packbits(values < 0)))

    def decode(self, encoded: np.ndarray, *, size: int) -> np.ndarray:
        """Return the values, in fresh memory."""
        values = aligned_empty((size,), np.float32)
        values[...] = 1.0 - 2.0 * np.unpackbits(encoded[4:], count=size)
        values *= np.frombuffer(encoded[:4].tobytes(), np.float32)
        return values


SIGN = CodecFacts(
    make=SignCodec, coding=Coding(encode_s=1e-9, decode_s=1e-9), limit=CodecLimit.SAFE
)
'''

_FIND_CODEC = """
import numpy as np
from jaxpipe.collective import AllReduceKind, CodecLimit, codec_of
from jaxpipe.comm import CountingTransport, WireFormat, all_reduce, run_ranks
from jaxpipe.plan import PlanConfig, default_plan
from jaxpipe.schedule import ScheduleKind
from jaxpipe.plan.cost import flop_profile
from jaxpipe.propose.codec_choice import choose_codecs
from jaxpipe.simulate import Conditions
from jaxpipe.topo import load

cluster = load("homogeneous:hosts=4,bandwidth_gbps=0.01")
profile = flop_profile(
    num_layers=2, layer_flop=1e9, layer_parameters=10**6, layer_kept_bytes=1000,
    activation_bytes=10**6, flops_per_s=1e12,
)
section = PlanConfig(stages=2, replicas=2, microbatch=1, schedule=ScheduleKind.GPIPE)
plan = default_plan(section, cluster, num_layers=2, batch=4, tied=False)
conditions = Conditions(
    cluster=cluster, profile=profile, slow=np.ones(len(cluster)), gradient_bytes=4
)
choice = choose_codecs(plan, conditions, CodecLimit.SAFE)
wire = WireFormat(far=codec_of(choice.codecs.gradients))

def work(transport):
    counting = CountingTransport(transport)
    signs = np.where(np.arange(1600) % 3 == transport.rank, -2.0, 2.0).astype(np.float32)
    total = all_reduce(
        counting, signs, (0, 1), tag=0, timeout_s=60.0,
        algorithm=AllReduceKind.HIERARCHICAL, wire=wire,
    )
    return total.tolist(), signs.tolist()

(first, mine), (second, other) = run_ranks(2, work)
result = {
    "boundary": str(choice.codecs.boundary),
    "gradients": str(choice.codecs.gradients),
    "is_exact": first == second == [a + b for a, b in zip(mine, other)],
}
"""


def test_a_codec(packages: CopiedPackages) -> None:
    packages.add("jaxpipe/collective/codec/sign.py", _CODEC)
    packages.name(
        "jaxpipe/collective/kinds.py",
        "from jaxpipe.collective.codec.sign import SIGN",
        after='"""8 % of one byte; gradients only, with error feedback."""',
        line='SIGN = "sign", SIGN',
    )
    # All of its magnitudes are equal, so the sum is exact.
    assert packages.run(_FIND_CODEC) == {
        "boundary": "sign",
        "gradients": "sign",
        "is_exact": True,
    }
