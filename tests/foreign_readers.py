"""The readers of files that others wrote, each with a file that it accepts."""

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from jaxpipe import topo
from jaxpipe.baselines.autoshard.duplex.collective_profile import (
    find_profile,
    profile_text,
    published_profiles,
)
from jaxpipe.baselines.autoshard.duplex.found_file import read_found
from jaxpipe.baselines.autoshard.strategy.pins import read_pins
from jaxpipe.baselines.autoshard.strategy.strategy_file import read_strategy
from jaxpipe.collective import CodecKind
from jaxpipe.config import load_config, place_in
from jaxpipe.errors import ConfigError
from jaxpipe.inference.messages_file import read_messages
from jaxpipe.interchange.gpt2_config_json import config_of_gpt2
from jaxpipe.interchange.import_record import read_record as read_record_of_import
from jaxpipe.interchange.llama_config_json import config_of_llama
from jaxpipe.interchange.tensor_files import read_json as read_model_json
from jaxpipe.outer.merge_log import Began, First, Given, Merge, MergedIsland
from jaxpipe.plan import read_resolved_plan
from jaxpipe.plan.cost import Profile, flop_profile, read_profile, write_profile
from jaxpipe.run.drift.new_plan import adopted_in
from jaxpipe.run.folder.folder_lock import holder_of, locked
from jaxpipe.run.folder.list_runs import runs_in, summary_of
from jaxpipe.run.hosts.join_words import JoinAddress, new_key, read_join_file, write_join_file
from jaxpipe.run.quorum.merge_log_file import LOG_FILE, MergeLog, read_run
from jaxpipe.run.terminal.progress import Progress
from jaxpipe.run.terminal.rank_progress import read_progress, write_progress
from jaxpipe.runtime.checkpoint.manifest import Manifest, read_manifest, write_manifest
from jaxpipe.runtime.data import byte_level_definition, load_byte_pairs
from jaxpipe.runtime.data.dataset.record import Record, TokenFile, read_record, write_record
from jaxpipe.runtime.data.preparation.arrow_rows import saved_files
from jaxpipe.runtime.data.preparation.document import Fields
from jaxpipe.runtime.data.preparation.labelled import labelled_lines
from jaxpipe.runtime.data.preparation.source import Source
from jaxpipe.runtime.metrics.metrics_file import MetricsFile
from jaxpipe.runtime.metrics.records import last_step, read_metrics
from jaxpipe.runtime.watchdog import Cause, CauseKind, read_cause, write_cause
from jaxpipe.runtime.watchdog.heartbeat import (
    Heartbeat,
    heartbeat_file,
    read_heartbeats,
    write_heartbeat,
)
from jaxpipe.schedule.csv_file import read_schedule
from jaxpipe.topo.write import cluster_toml
from jaxpipe.trace import Lane, Span, Trace, Truth, read_chrome, write_chrome

METRICS = (
    '{"run": {"config": {"model": {"num_layers": 4, "dim": 8}, "plan": {"stages": 2, "cuts": '
    '[[1], [2]]}, "train": {"steps": 3}}}, "truth": "measured", "key": "a", "told_step": 1}\n'
    '{"step": 1, "loss": 5.5, "eval_loss": null, "grad_norm": 1.0, "learning_rate": 0.001, '
    '"step_s": 0.5, "tokens_per_s": 10.0, "bubble": 0.1, "sent_bytes": 7, "flops_per_s": 1e9}\n'
    '{"step": 2, "loss": NaN, "eval_loss": 5.0, "grad_norm": null, "learning_rate": 0.001, '
    '"step_s": 0.5, "tokens_per_s": 10.0, "bubble": 0.1, "sent_bytes": 7, "flops_per_s": 1e9}\n'
)
MERGE_EVENTS = (
    Began(
        anchor=0,
        digest="",
        islands=2,
        learning_rate=0.7,
        momentum=0.9,
        discount=0.5,
        codec=CodecKind.NONE,
        batch=8,
        seed=0,
        versions="1",
    ),
    First(island=1, digest="a"),
    Given(island=1, anchor=0, step=0, joined=True),
    Merge(
        anchor=1,
        digest="b",
        islands=(
            MergedIsland(island=1, base=0, step=2, steps=2, tokens=3.0, digest="c", weight=1.0),
        ),
    ),
)
MESSAGES = (
    '{"messages": [{"role": "user", "content": "2 + 2?"}, {"role": "assistant", "tool_calls": '
    '[{"function": {"name": "add", "arguments": "{\\"a\\": 2}"}}]}, '
    '{"role": "tool", "content": "4"}], '
    '"tools": [{"type": "function", "function": {"name": "add"}}]}'
)
CONFIG = '[run]\nfolder = "."\n[model]\npreset = "tiny"\n[data]\nfolder = "data"\n'
PLAN = (
    'format = 7\ncluster = "laptop"\nmicrobatch = 1\nnum_microbatches = 2\n'
    'schedule = "1f1b"\n[[replica]]\ncut = [1, 1]\nplacement = [0, 1]\n'
)
STRATEGY = '{"format": 1, "name": "a", "mesh": {"dp": 1, "op": 1}, "arguments": {}}'
FOUND = (
    '{"format": 1, "search": "duplex", "devices": 2, "seconds": 1.0, "memory_bytes": 1, '
    '"stages": [{}], "operators": []}'
)
GPT2 = (
    '{"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 2, "n_positions": 16, '
    '"vocab_size": 64, "activation_function": "gelu_new"}'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignReader:
    """Reads `file` in a folder; `write` puts there a file that it accepts."""

    file: str
    write: Callable[[Path], object]
    read: Callable[[Path], Any]


def _text(file: str, text: str, read: Callable[[Path], Any]) -> ForeignReader:
    return ForeignReader(
        file=file, write=lambda folder: (folder / file).write_text(text), read=read
    )


def _held(folder: Path) -> None:
    with locked(folder, beats=False):
        content = (folder / "lock").read_bytes()
    (folder / "lock").write_bytes(content)


def _trace(folder: Path) -> None:
    span = Span(rank=0, lane=Lane.COMPUTE, name="forward", start_s=0, end_s=1, step=1, stage=0)
    write_chrome(
        Trace(truth=Truth.MEASURED, rank_names=("a",), spans=(span,)), folder / "trace.json"
    )


def _record(folder: Path) -> None:
    tokens = TokenFile(num_tokens=3, dtype="uint8", checksum="00")
    write_record(
        folder,
        Record(
            vocabulary=256,
            tokenizer="bytes",
            tokenizer_checksum=None,
            source="a",
            train=tokens,
            eval=tokens,
        ),
    )


def _small_model() -> Profile:
    return flop_profile(
        num_layers=2,
        layer_flop=1e9,
        layer_parameters=1,
        layer_kept_bytes=1,
        activation_bytes=1,
        flops_per_s=1e9,
    )


def _profile_of_stages(folder: Path) -> None:
    stage = {"layers": 1, "forward_s": 1.0, "backward_s": 2.0}
    times = {"device": "a core", "microbatch": 1, "stages": [stage, stage]}
    (folder / "p.json").write_text(json.dumps(times))


def _heartbeat(folder: Path) -> None:
    (folder / "watch").mkdir()
    write_heartbeat(
        heartbeat_file(folder, 0),
        Heartbeat(
            rank=0,
            stage=0,
            step=1,
            doing="update",
            waits_for=(),
            overdue=False,
            beat=1,
            process=1,
            host="a",
        ),
        num_ranks=3,
    )


def _merges(folder: Path) -> None:
    log = MergeLog(folder)
    for event in MERGE_EVENTS:
        log.add(event)
    log.close()


def _metrics(read: Callable[[Path], Any]) -> ForeignReader:
    return _text("metrics.jsonl", METRICS, lambda folder: read(folder / "metrics.jsonl"))


def _documents(path: Path) -> list[str]:
    return list(Source(path=path, fields=Fields(text="text")).pieces())


def _compressed(compress: Callable[[bytes], bytes], file: str) -> ForeignReader:
    content = compress(b'{"text": "one"}\n{"text": "two"}\n')
    return ForeignReader(
        file=file,
        write=lambda folder: (folder / file).write_bytes(content),
        read=lambda folder: _documents(folder / file),
    )


def _zstandard(content: bytes) -> bytes:
    return import_module("pyarrow").compress(content, codec="zstd", asbytes=True)


def _table(file: str, write: Callable[[Any, Path], object]) -> ForeignReader:
    def written(folder: Path) -> None:
        write(import_module("pyarrow").table({"text": ["one", "two"]}), folder / file)

    return ForeignReader(file=file, write=written, read=lambda folder: _documents(folder / file))


def _cluster(folder: Path) -> object:
    return (folder / "c.toml").write_text(cluster_toml(topo.load("two-region"), about="a"))


def _with_hostfile(folder: Path) -> topo.Cluster:
    (folder / "h.toml").write_text(
        'name = "c"\n[[hosts]]\nhostfile = "hosts"\n[inside_region]\nlatency_ms = 1\n'
        "bandwidth_gbps = 1\n[inside_host]\nlatency_ms = 0\nbandwidth_gbps = 9\n"
    )
    return topo.load(str(folder / "h.toml"))


TOKENIZER_CONFIG = (
    '{"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "bos_token": null, '
    '"added_tokens_decoder": {"256": {"content": "</s>", "special": true}}, "add_bos_token": false}'
)
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}\n"
    "{% if loop.last and add_generation_prompt %}<assistant>{% endif %}{% endfor %}"
)
LLAMA = (
    '{"model_type": "llama", "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, '
    '"num_hidden_layers": 1, "vocab_size": 32, "max_position_embeddings": 16, "rope_scaling": '
    '{"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, '
    '"original_max_position_embeddings": 8}, "tie_word_embeddings": false}'
)
RECORD = (
    '{"format": 1, "base": "a/b", "dtype": "bfloat16", "config": {"eos_token_id": [1, 2], '
    '"model_type": "llama"}}'
)


def _beside_tokenizer(file: str, content: str) -> ForeignReader:
    """Return the reader of a file beside a `tokenizer.json`, of which all is read."""

    def write(folder: Path) -> None:
        (folder / "tokenizer.json").write_text(byte_level_definition())
        (folder / file).write_text(content)

    def read(folder: Path) -> Any:
        tokenizer = load_byte_pairs(folder / "tokenizer.json", inside=True)
        messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        template = tokenizer.template
        return tokenizer.frame, None if template is None else template.render(messages)

    return ForeignReader(file=file, write=write, read=read)


READERS = {
    "metrics": _metrics(read_metrics),
    "last step": _metrics(last_step),
    "summary": _text("metrics.jsonl", METRICS, summary_of),
    "runs": _text("metrics.jsonl", METRICS, runs_in),
    "resumed metrics": _metrics(lambda path: MetricsFile(path, {}, first_step=1)),
    "cause": ForeignReader(
        file="cause.json",
        write=lambda folder: write_cause(folder, Cause(kind=CauseKind.HANG, message="3 s")),
        read=read_cause,
    ),
    "lock": ForeignReader(file="lock", write=_held, read=holder_of),
    "trace": ForeignReader(
        file="trace.json", write=_trace, read=lambda folder: read_chrome(folder / "trace.json")
    ),
    "configuration": _text("run.toml", CONFIG, lambda folder: load_config(folder / "run.toml")),
    "place of checkpoints": _text("run.toml", CONFIG, place_in),
    "plan": _text("plan.toml", PLAN, lambda folder: read_resolved_plan(folder / "plan.toml")),
    "schedule": _text(
        "s.csv",
        "0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n",
        lambda f: read_schedule(f / "s.csv", num_stages=2),
    ),
    "tokenizer": ForeignReader(
        file="tokenizer.json",
        write=lambda folder: (folder / "tokenizer.json").write_text(byte_level_definition()),
        read=lambda folder: load_byte_pairs(folder / "tokenizer.json", inside=True),
    ),
    "tokenizer's settings": _beside_tokenizer("tokenizer_config.json", TOKENIZER_CONFIG),
    "special tokens": _beside_tokenizer("special_tokens_map.json", '{"eos_token": "</s>"}'),
    "ends of text": _beside_tokenizer("generation_config.json", '{"eos_token_id": [255, 3]}'),
    "chat template": _beside_tokenizer("chat_template.jinja", TEMPLATE),
    "imported Llama": _text(
        "config.json",
        LLAMA,
        lambda folder: config_of_llama(read_model_json(folder / "config.json", ConfigError)),
    ),
    "record of an import": _text("import.json", RECORD, read_record_of_import),
    "messages": _text(
        "messages.json", MESSAGES, lambda folder: read_messages(folder / "messages.json")
    ),
    "dataset": ForeignReader(file="dataset.json", write=_record, read=read_record),
    "manifest": ForeignReader(
        file="manifest.json",
        write=lambda folder: write_manifest(folder, Manifest(step=1, metadata={}, tensors=())),
        read=read_manifest,
    ),
    "profile": ForeignReader(
        file="p.json",
        write=lambda folder: write_profile(_small_model(), folder / "p.json"),
        read=lambda folder: read_profile(folder / "p.json"),
    ),
    "profile of stages": ForeignReader(
        file="p.json",
        write=_profile_of_stages,
        read=lambda folder: read_profile(folder / "p.json", counted=_small_model()),
    ),
    "adopted plan": _text("adopt.json", '{"step": 1, "replanned": {}}', adopted_in),
    "progress": ForeignReader(
        file="watch/progress.json",
        write=lambda folder: write_progress(folder, Progress(what="compiling")),
        read=read_progress,
    ),
    "heartbeats": ForeignReader(
        file="watch/rank-0.json",
        write=_heartbeat,
        read=lambda folder: read_heartbeats(folder, range(1)),
    ),
    "log of merges": ForeignReader(file=LOG_FILE, write=_merges, read=read_run),
    "address to join": ForeignReader(
        file="join.json",
        write=lambda folder: write_join_file(folder, JoinAddress(host="a", port=1, key=new_key())),
        read=read_join_file,
    ),
    "cluster": ForeignReader(
        file="c.toml", write=_cluster, read=lambda folder: topo.load(str(folder / "c.toml"))
    ),
    "hostfile": _text("hosts", "a slots=2\nb:2\nc\n", _with_hostfile),
    "collectives": ForeignReader(
        file="l.toml",
        write=lambda folder: (folder / "l.toml").write_text(
            profile_text("a", next(iter(published_profiles().values())))
        ),
        read=lambda folder: find_profile(str(folder / "l.toml")),
    ),
    "strategy": _text("s.json", STRATEGY, lambda folder: read_strategy(folder / "s.json")),
    "duplex": _text("d.json", FOUND, lambda folder: read_found(folder / "d.json")),
    "pins": _text(
        "pins.toml", '[operators]\n3 = "S0R"\n', lambda folder: read_pins(folder / "pins.toml")
    ),
    "imported model": _text(
        "config.json",
        GPT2,
        lambda folder: config_of_gpt2(read_model_json(folder / "config.json", ConfigError)),
    ),
    "text": _text("a.txt", "one\n\ntwo\n", lambda folder: _documents(folder / "a.txt")),
    "records": _text(
        "a.jsonl", '{"text": "one"}\n{"text": "two"}\n', lambda f: _documents(f / "a.jsonl")
    ),
    "list of records": _text(
        "a.json", '[{"text": "one"}, {"text": "two"}]', lambda f: _documents(f / "a.json")
    ),
    "table of text": _text(
        "a.csv", 'text,n\n"one, 1",2\ntwo,3\n', lambda folder: _documents(folder / "a.csv")
    ),
    "compressed records": _compressed(gzip.compress, "a.jsonl.gz"),
    "records in xz": _compressed(lzma.compress, "a.jsonl.xz"),
    "records in bzip2": _compressed(bz2.compress, "a.jsonl.bz2"),
    "records in Zstandard": _compressed(_zstandard, "a.jsonl.zst"),
    "Parquet": _table(
        "a.parquet", lambda table, path: import_module("pyarrow.parquet").write_table(table, path)
    ),
    "Feather": _table(
        "a.feather",
        lambda table, path: import_module("pyarrow.feather").write_feather(table, str(path)),
    ),
    "labelled text": _text(
        "a.tsv", "good\tone\nbad\ttwo\n", lambda folder: list(labelled_lines(folder / "a.tsv"))
    ),
    "saved dataset": _text(
        "state.json",
        '{"_data_files": [{"filename": "data-0.arrow"}], "_split": null}',
        saved_files,
    ),
}
