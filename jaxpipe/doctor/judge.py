"""Findings from the facts of all ranks of a job: versions, cores, devices and links."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from jaxpipe.doctor.facts import NCCL_PACKAGES, RankFacts
from jaxpipe.doctor.finding import Finding, Health
from jaxpipe.doctor.long_links import judge_measured_links
from jaxpipe.jaxpr import TESTED, is_tested

_LEAST_NCCL = (2, 31, 2)
"""With NCCL 2.30.7 a pipeline whose stages send explicitly was reported to hang, not with this."""
_SLOW_BYTES_PER_S = 100e6
"""Within one host even an old machine copies faster than this."""


def judge_job(ranks: Sequence[RankFacts], *, num_started: int) -> tuple[Finding, ...]:
    """Return the findings about a job of which `num_started` ranks were started.

    `ranks` are those that found each other: fewer, if mpi4py and the launcher use different MPIs.
    """
    # Ranks of another MPI than the launcher's each believe to be alone: a job of 1.
    if len(ranks) != num_started:
        return (
            Finding(
                about="ranks",
                health=Health.BROKEN,
                message=f"{num_started} ranks were started, but {len(ranks)} found each other: "
                "mpi4py uses another MPI than the `mpirun` that started them",
                fix="start with the `mpirun` of the environment that mpi4py is in, or pip install "
                "--no-binary mpi4py mpi4py with the cluster's MPI loaded",
            ),
        )
    return (
        Finding(about="ranks", health=Health.OK, message=f"{len(ranks)} ranks found each other"),
        _versions(ranks),
        _cores(ranks),
        _devices(ranks),
        _products(ranks),
        *_links(ranks),
        *judge_measured_links(ranks),
    )


def _versions(ranks: Sequence[RankFacts]) -> Finding:
    expected = ranks[0].versions
    for facts in ranks:
        for name, version in facts.versions.items():
            if version != expected.get(name):
                return Finding(
                    about="versions",
                    health=Health.BROKEN,
                    message=f"rank {facts.rank} on {facts.host} has {name} {version}, rank 0 "
                    f"on {ranks[0].host} has {expected.get(name)}",
                    fix=f"install {name}=={expected.get(name)} on {facts.host}, or one environment "
                    "on a disk that all hosts share",
                )
    if (old := _old_nccl(expected)) is not None:
        return old
    message = ", ".join(f"{name} {version}" for name, version in expected.items())
    if "jax" in expected and not is_tested(expected["jax"]):
        return Finding(
            about="versions",
            health=Health.SLOW,
            message=f"jaxpipe is tested with {TESTED}, and all ranks have {message}",
            fix="if anything fails, install one of the tested versions of jax",
        )
    return Finding(about="versions", health=Health.OK, message=f"the same on all ranks: {message}")


def _old_nccl(versions: Mapping[str, str]) -> Finding | None:
    """Return the finding about a version of NCCL with which pipelines may hang, if it is one."""
    for name in NCCL_PACKAGES:
        version = versions.get(name, "")
        numbers = tuple(int(part) for part in version.split(".")[:3] if part.isdecimal())
        if version and numbers < _LEAST_NCCL:
            least = ".".join(map(str, _LEAST_NCCL))
            return Finding(
                about="versions",
                health=Health.BROKEN,
                message=f"all ranks have {name} {version}, with which pipelines may hang",
                fix=f"pip install '{name}>={least}'",
            )
    return None


def _cores(ranks: Sequence[RankFacts]) -> Finding:
    for one, other in combinations(ranks, 2):
        shared = sorted(set(one.cores) & set(other.cores))
        if one.host == other.host and shared and not _compute_elsewhere(one, ranks):
            return Finding(
                about="cores",
                health=Health.SLOW,
                message=f"ranks {one.rank} and {other.rank} share {len(shared)} cores of "
                f"{one.host}",
                fix="start no more ranks than cores, or let the launcher bind them: "
                "mpirun --bind-to core, srun --cpu-bind=cores",
            )
    counts = _counted(str(len(facts.cores)) for facts in ranks)
    shares = "no rank" if not any(rank.gpus for rank in ranks) else "no rank without a GPU"
    return Finding(
        about="cores", health=Health.OK, message=f"{shares} shares a core; each has {counts}"
    )


def _products(ranks: Sequence[RankFacts]) -> Finding:
    """Return which library computes large products of matrices; without a BLAS, the reason."""
    products = _counted(facts.products for facts in ranks)
    message = f"large products of matrices on CPUs: {products}"
    return Finding(about="products", health=Health.OK, message=message)


def _compute_elsewhere(rank: RankFacts, ranks: Sequence[RankFacts]) -> bool:
    """Return whether the ranks of a host compute on GPUs, and have as many cores as they are."""
    here = [other for other in ranks if other.host == rank.host]
    return all(other.gpus for other in here) and len(rank.cores) >= len(here)


def _devices(ranks: Sequence[RankFacts]) -> Finding:
    kinds = _counted(" + ".join(facts.devices) or "none" for facts in ranks)
    for facts in ranks:
        if not facts.devices:
            return Finding(
                about="devices",
                health=Health.BROKEN,
                message=f"rank {facts.rank} on {facts.host} sees no device",
                fix="check CUDA_VISIBLE_DEVICES and JAX_PLATFORMS",
            )
    if len({facts.devices for facts in ranks}) > 1:
        return Finding(
            about="devices",
            health=Health.SLOW,
            message=f"ranks see different devices: {kinds}",
            fix="expected if the cluster of the plan has them; else run `jaxpipe plan` again",
        )
    if (shared := _shared_gpu(ranks)) is not None:
        return shared
    message = f"each rank uses {kinds}"
    if any(facts.gpus for facts in ranks):
        message += ": " + ", ".join(f"rank {rank.rank} {_gpus(rank)}" for rank in ranks)
    return Finding(about="devices", health=Health.OK, message=message)


def _shared_gpu(ranks: Sequence[RankFacts]) -> Finding | None:
    for one, other in combinations(ranks, 2):
        shared = [name for name in one.gpus if name in other.gpus]
        if one.host == other.host and shared:
            return Finding(
                about="devices",
                health=Health.SLOW,
                message=f"ranks {one.rank} and {other.rank} share {' + '.join(shared)} of "
                f"{one.host}",
                fix="start no more ranks on a host than it has GPUs, and leave "
                "CUDA_VISIBLE_DEVICES to the launcher",
            )
    return None


def _gpus(facts: RankFacts) -> str:
    return f"{' + '.join(facts.gpus) or 'none'} of {facts.host}"


def _links(ranks: Sequence[RankFacts]) -> Iterator[Finding]:
    linked = [
        (facts.bytes_per_s, facts.latency_s, facts)
        for facts in ranks
        if facts.bytes_per_s is not None and facts.latency_s is not None
    ]
    if not linked:
        return
    bytes_per_s, latency_s, slowest = min(linked, key=lambda link: link[0])
    # Gbps are bits: 8 times the bytes.
    message = (
        f"slowest link with rank 0: rank {slowest.rank} on {slowest.host}: "
        f"{1e3 * latency_s:.3g} ms, {8 * bytes_per_s / 1e9:.3g} Gbps"
    )
    if slowest.host == ranks[0].host and bytes_per_s < _SLOW_BYTES_PER_S:
        yield Finding(
            about="links",
            health=Health.SLOW,
            message=message,
            fix="messages within a host should use shared memory: check that the MPI supports it "
            " (Open MPI: --mca btl self,sm), and that /dev/shm has room",
        )
    else:
        yield Finding(about="links", health=Health.OK, message=message)


def _counted(names: Iterable[str]) -> str:
    """Return the distinct names, with their counts if there are several.

    >>> _counted(["cpu", "cpu"]), _counted(["cpu", "H200", "cpu"])
    ('cpu', '2x cpu, 1x H200')
    """
    counts = Counter(names)
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(f"{count}x {name}" for name, count in counts.items())
