"""No module opens or parses files of others by itself: `jaxpipe.foreign_file` is the one door."""

import ast
from collections.abc import Iterator
from pathlib import Path

_METHODS = ("open", "read_text", "read_bytes")
_FUNCTIONS = (
    *("open", "os.open", "os.fdopen", "io.open", "safe_open", "image.open"),
    *("json.load", "json.loads", "msgspec.json.decode", "tomllib.load", "tomllib.loads"),
    *("np.load", "np.loadtxt", "np.memmap", "np.fromfile"),
)

DOOR = "the door, and what it opens"
KERNEL = "files of the kernel and its devices"
PACKAGE = "files that come with jaxpipe"
RANKS = "messages of ranks of the same job, over MPI"
CHILD = "messages from and to a child process, or its parent"
WRITTEN = "a file that this process writes, or has just written"
CHECKED = "a library takes the path, which is checked to be a regular file before"
CONTENT = "content that the door has read"

ELSEWHERE = {
    "jaxpipe/baselines/autoshard/duplex/collective_profile.py": (1, PACKAGE),
    "jaxpipe/baselines/autoshard/hlo/target.py": (2, CHILD),
    "jaxpipe/baselines/autoshard/hlo/target_speeds.py": (2, PACKAGE),
    "jaxpipe/baselines/compare/busy_speeds.py": (2, RANKS),
    "jaxpipe/baselines/compare/compare_rank.py": (1, RANKS),
    "jaxpipe/baselines/compare/host_rank.py": (1, RANKS),
    "jaxpipe/baselines/compare/measured.py": (3, CHILD),
    "jaxpipe/baselines/compare/sharded_rank.py": (1, RANKS),
    "jaxpipe/baselines/compare/table.py": (1, WRITTEN),
    "jaxpipe/baselines/gpt/compile_worker.py": (1, CHILD),
    "jaxpipe/baselines/gpt/staged_worker.py": (1, CHILD),
    "jaxpipe/cli/init.py": (2, PACKAGE),
    "jaxpipe/cli/main.py": (1, KERNEL),
    "jaxpipe/comm/mpi/api.py": (1, KERNEL),
    "jaxpipe/doctor/facts.py": (1, RANKS),
    "jaxpipe/doctor/hello.py": (1, CHILD),
    "jaxpipe/doctor/run_disk.py": (1, WRITTEN),
    "jaxpipe/foreign_file.py": (6, DOOR),
    "jaxpipe/interchange/name_patterns.py": (1, CHILD),
    "jaxpipe/interchange/tensor_files.py": (1, CHECKED),
    "jaxpipe/outer/loss_law.py": (2, PACKAGE),
    "jaxpipe/paced/execute.py": (2, RANKS),
    "jaxpipe/profile/measuring_process.py": (1, CHILD),
    "jaxpipe/profile/profile_process.py": (1, CHILD),
    "jaxpipe/run/drift/search_process.py": (3, CHILD),
    "jaxpipe/run/folder/folder_lock.py": (6, WRITTEN),
    "jaxpipe/run/hosts/placed_job.py": (1, WRITTEN),
    "jaxpipe/run/quorum/merge_log_file.py": (1, WRITTEN),
    "jaxpipe/run/train_request.py": (1, CHILD),
    "jaxpipe/runtime/blas/custom_calls.py": (1, PACKAGE),
    "jaxpipe/runtime/checkpoint/async_saver.py": (1, RANKS),
    "jaxpipe/runtime/checkpoint/checkpoint_files.py": (1, CHECKED),
    "jaxpipe/runtime/checkpoint/own_disks/available.py": (2, RANKS),
    "jaxpipe/runtime/checkpoint/own_disks/commit_by_message.py": (2, RANKS),
    "jaxpipe/runtime/checkpoint/own_disks/fetch.py": (1, RANKS),
    "jaxpipe/runtime/checkpoint/own_disks/file_transfer.py": (1, WRITTEN),
    "jaxpipe/runtime/checkpoint/own_disks/find_disks.py": (1, RANKS),
    "jaxpipe/runtime/checkpoint/streamed_shard.py": (2, WRITTEN),
    "jaxpipe/runtime/data/dataset/bring_dataset.py": (1, RANKS),
    "jaxpipe/runtime/data/dataset/byte_pairs.py": (1, CONTENT),
    "jaxpipe/runtime/data/dataset/dataset.py": (2, CHECKED),
    "jaxpipe/runtime/data/dataset/spelt_tokens.py": (1, CONTENT),
    "jaxpipe/runtime/data/preparation/bad_records.py": (1, WRITTEN),
    "jaxpipe/runtime/data/preparation/conversation.py": (1, CONTENT),
    "jaxpipe/runtime/data/preparation/labelled.py": (1, WRITTEN),
    "jaxpipe/runtime/data/preparation/pictures.py": (1, CONTENT),
    "jaxpipe/runtime/data/preparation/record_rows.py": (3, CONTENT),
    "jaxpipe/runtime/data/preparation/token_stream.py": (3, WRITTEN),
    "jaxpipe/runtime/metrics/metrics_file.py": (2, WRITTEN),
    "jaxpipe/runtime/metrics/trace_file.py": (1, RANKS),
    "jaxpipe/runtime/process/core_claims.py": (4, KERNEL),
    "jaxpipe/runtime/process/file_lock.py": (1, WRITTEN),
    "jaxpipe/runtime/process/mpirun.py": (1, WRITTEN),
    "jaxpipe/runtime/process/preflight.py": (1, RANKS),
    "jaxpipe/runtime/process/process_signals.py": (3, KERNEL),
    "jaxpipe/runtime/process/user_cache.py": (1, KERNEL),
    "jaxpipe/runtime/storage/atomic_write.py": (2, WRITTEN),
    "jaxpipe/runtime/storage/block_checksums.py": (1, CONTENT),
    "jaxpipe/runtime/storage/object_folder.py": (1, WRITTEN),
    "jaxpipe/runtime/watchdog/heartbeat.py": (1, WRITTEN),
    "jaxpipe/runtime/watchdog/heartbeat_exchange.py": (1, RANKS),
    "jaxpipe/runtime/watchdog/process_state.py": (2, KERNEL),
    "jaxpipe/simulate/constants.py": (2, PACKAGE),
    "models/catalogue.py": (2, PACKAGE),
    "topo/catalogue.py": (2, PACKAGE),
    "topo/emulate/emulation.py": (1, CHILD),
    "topo/emulate/engine.py": (1, KERNEL),
    "topo/emulate/namespaces.py": (2, CHILD),
    "topo/emulate/network_spec.py": (1, CHILD),
    "topo/emulate/owner.py": (1, KERNEL),
    "topo/emulate/rank_watch.py": (1, KERNEL),
    "topo/emulate/relay.py": (3, KERNEL),
    "topo/emulate/relay_engine.py": (1, CHILD),
    "topo/gpu.py": (1, PACKAGE),
    "topo/host_tcp.py": (4, KERNEL),
    "topo/machine_limits.py": (4, KERNEL),
    "topo/matrix.py": (2, CONTENT),
    "topo/nvidia.py": (1, PACKAGE),
    "topo/probe/measure.py": (1, RANKS),
    "topo/route.py": (1, KERNEL),
    "topo/this_machine.py": (1, KERNEL),
    "topo/toml_text.py": (1, CONTENT),
}
"""The modules that open or parse something else, how often, and what."""


SPLIT_ELSEWHERE = {
    "jaxpipe/baselines/autoshard/hlo/hlo_collectives.py": "a program that this process compiled",
    "jaxpipe/baselines/autoshard/hlo/overlap.py": "a program that this process compiled",
    "jaxpipe/baselines/autoshard/hlo/target.py": "what a process of ours printed",
    "jaxpipe/cli/parse.py": "what tyro printed",
    "jaxpipe/cli/plan_text.py": "a drawing of ours",
    "jaxpipe/doctor/hello.py": "the last line of complaints, to be shown",
    "jaxpipe/launch/mpirun_script.py": "a file of ours, of checked names",
    "jaxpipe/plan/plan_file.py": "comments to write: each line behind its own `#`",
    "jaxpipe/profile/measuring_process.py": "the last line of complaints, to be shown",
    "jaxpipe/run/drift/search_process.py": "the last line of complaints, to be shown",
    "jaxpipe/runtime/data/preparation/arrow_rows.py": "the first line of an error, to be shown",
    "topo/emulate/relay_engine.py": "the last line of complaints, to be shown",
    "topo/write.py": "comments to write: each line behind its own `#`",
}
"""The modules that use `splitlines`, and on what."""


def reads_in(text: str) -> Iterator[str]:
    """Yield the calls that open or parse a file."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            is_method = isinstance(node.func, ast.Attribute) and node.func.attr in _METHODS
            if is_method or name in _FUNCTIONS:
                yield f"line {node.lineno}: {name}"


def test_files_of_others_are_read_by_the_door_alone() -> None:
    found = {
        str(path): calls
        for root in ("jaxpipe", "models", "topo")
        for path in sorted(Path(root).rglob("*.py"))
        # `chaos` breaks its own files on purpose.
        if "chaos" not in path.parts and (calls := list(reads_in(path.read_text())))
    }
    counts = {path: count for path, (count, _) in ELSEWHERE.items()}
    others = {path: calls for path, calls in found.items() if len(calls) != counts.get(path)}
    assert not others, f"read files of others by `jaxpipe.foreign_file`, or list them: {others}"
    assert not counts.keys() - found.keys()


def test_lines_of_others_end_where_other_programs_end_them() -> None:
    # `str.splitlines` ends them at form feeds and U+2028 as well.
    users = {
        str(path)
        for root in ("jaxpipe", "models", "topo")
        for path in sorted(Path(root).rglob("*.py"))
        if "chaos" not in path.parts and ".splitlines(" in path.read_text()
    }
    assert users == SPLIT_ELSEWHERE.keys(), "use `jaxpipe.foreign_file.lines_of`, or list them"


def test_the_walk_finds_what_it_looks_for() -> None:
    text = "path.read_text(); open(a); read_text(b); json.loads(c); np.load(d); x.open('rb')"
    assert [call.partition(": ")[2] for call in reads_in(text)] == [
        *("path.read_text", "open", "json.loads", "np.load", "x.open")
    ]
