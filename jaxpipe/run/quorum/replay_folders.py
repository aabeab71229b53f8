"""Replay the log in the folder of a merge server, with the folders of its islands."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from jaxpipe.config import Config, config_from, config_in, job_from, load_config, to_tree
from jaxpipe.config.kept_inputs import CONFIG_FILE
from jaxpipe.errors import ConfigError
from jaxpipe.installed import version_of
from jaxpipe.outer.merge_log import Began
from jaxpipe.propose.resolve import plan_from
from jaxpipe.run.folder.start_from import check_start_from, start_from
from jaxpipe.run.quorum.merge_log_file import LOG_FILE, LoggedRun, read_run
from jaxpipe.run.quorum.replay_islands import Replayed, ReplayedRun, merged_by, replay
from jaxpipe.runtime.checkpoint import Checkpoint, latest, open_checkpoint


def replay_folders(
    server: Path,
    islands: Sequence[Path],
    *,
    source: Path | None = None,
    say: Callable[[str], object],
) -> Replayed:
    """Train the islands of a log in threads, and compare each merge with the one in the log.

    `islands` are the folders of their runs, which stay as they are; `source` is that of the run
    or the import with whose parameters they have begun.

    Raises:
        ConfigError: the log is corrupt, or an island is missing, or of another run.
        UserError: the plan or the data of an island is missing or corrupt.
        RunError: an island has failed.
    """
    log = read_run(server)
    if not log.lineage.merged:
        raise ConfigError(f"`{LOG_FILE}` in {server} has no merge: there is nothing to replay")
    here = version_of("jaxpipe")
    if log.began.versions != here:
        say(f"the log is of jaxpipe {log.began.versions}, this is {here}: bits may differ")
    runs = _runs(_configs(islands, log.began), log)
    if source is None:
        return replay(log, runs, say=say)
    with TemporaryDirectory(prefix="jaxpipe-replay-") as folder:
        begun = _begun(next(iter(runs.values())), source, Path(folder))
        runs = {number: replace(run, begun=begun) for number, run in runs.items()}
        return replay(log, runs, say=say)


def _begun(run: ReplayedRun, source: Path, folder: Path) -> Checkpoint:
    """Return the checkpoint of step 0 with which the islands have begun; it is in `folder`."""
    config = config_from(run.job.description["config"])
    config = replace(config, run=replace(config.run, folder=str(folder)))
    start_from(config, source, check_start_from(config, source))
    return open_checkpoint(latest(folder))


def _configs(folders: Sequence[Path], began: Began) -> dict[int, Config]:
    """Return the configurations of islands by their number."""
    configs: dict[int, Config] = {}
    for folder in folders:
        config = _config(folder, began)
        number = config.quorum.island
        if number in configs:
            raise ConfigError(
                f"`quorum.island` is {number} in {configs[number].run.folder} and in {folder}; "
                "name one folder for each island"
            )
        configs[number] = config
    return configs


def _config(folder: Path, began: Began) -> Config:
    """Return the configuration of a run, if it is an island of the log.

    Raises:
        ConfigError: it is none, or has other settings than the server had.
    """
    config = config_in(folder, to_tree(load_config(folder / CONFIG_FILE, notice=None)))
    if not config.quorum.is_on:
        raise ConfigError(f"`quorum.server` is not set in {folder}: it is the run of no island")
    for name, value, logged in (
        ("train.batch", config.train.batch, began.batch),
        ("run.seed", config.run.seed, began.seed),
        ("quorum.codec", config.quorum.codec.value, began.codec.value),
    ):
        if value != logged:
            raise ConfigError(
                f"`{name}` is {value!r:.80} in {folder}, and {logged!r:.80} in the log; name the "
                "folder of an island of this log"
            )
    if config.comm.feeds_back:
        raise ConfigError(
            f"`comm.gradients` is {config.comm.gradients} in {folder}: its residuals begin at zero "
            "where a run resumes, which the log does not tell; such a run cannot be replayed"
        )
    return config


def _runs(configs: Mapping[int, Config], log: LoggedRun) -> dict[int, ReplayedRun]:
    """Return the runs of the islands that have a part in an anchor."""
    most = {s.island: s.end for s in sorted(log.lineage.stretches, key=lambda s: s.end)}
    runs: dict[int, ReplayedRun] = {}
    for number in sorted(merged_by(log)):
        if number not in configs:
            raise ConfigError(
                f"`islands` has no folder of island {number}, which the log has; name it, too"
            )
        runs[number] = _run(configs[number], num_steps=most[number])
    return runs


def _run(config: Config, *, num_steps: int) -> ReplayedRun:
    """Return the run of an island that has trained for `num_steps`, if threads can repeat it."""
    folder = config.run.folder
    if num_steps > config.train.steps:
        raise ConfigError(
            f"`train.steps` is {config.train.steps} in {folder}, and its island has trained for "
            f"{num_steps} in the log; name the folder of an island of this log"
        )
    plan = plan_from(config)
    if plan.all_reduce.facts.is_native:
        raise ConfigError(
            f"`plan.all_reduce` is {plan.all_reduce} in {folder}, and a replay has no library that "
            "sums; such a run cannot be replayed"
        )
    return ReplayedRun(job=job_from(config, plan))
