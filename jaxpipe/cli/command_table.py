"""The table of all commands: where each lives, and its line in `jaxpipe --help`.

A command is imported when it is called, so that a command may import at the top of its file what it
needs, and help for one command costs nothing of the others::

    jaxpipe trace RUN ──► COMMANDS["trace"] ──► import jaxpipe.cli.trace ──► trace(RUN)
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module

_PACKAGE = "jaxpipe.cli"


@dataclass(frozen=True, slots=True)
class Command:
    """A command, by the module and the name of its function.

    >>> Command("runs:runs", "").load().__module__
    'jaxpipe.cli.runs'
    """

    target: str
    """`MODULE:FUNCTION`, the module below `jaxpipe.cli`."""
    first_line: str
    """The first line of the docstring of the function."""

    def load(self) -> Callable[..., int]:
        """Import the module, and return the function."""
        module, _, name = self.target.partition(":")
        return getattr(import_module(f"{_PACKAGE}.{module}"), name)


@dataclass(frozen=True, slots=True)
class CommandGroup:
    """Commands of two words."""

    first_line: str
    commands: Mapping[str, Command]
    """By the second word."""


TOPICS: Mapping[str, Mapping[str, Command | CommandGroup]] = {
    "Train": {
        "init": Command(
            "init:init", "Write a commented starter configuration, and print the next commands."
        ),
        "data": CommandGroup(
            "Prepare and inspect datasets.",
            {
                "prepare": Command(
                    "data:prepare",
                    "Turn texts or pictures into files that `jaxpipe train` maps into memory.",
                )
            },
        ),
        "train": Command(
            "train:train",
            "Train a model on this host, or on the ranks of the `mpirun` that starts this command.",
        ),
        "generate": Command(
            "generate:generate", "Continue a text with the newest checkpoint of a run."
        ),
        "evaluate": Command(
            "evaluate:evaluate",
            "Measure the newest checkpoint of a run: held-out perplexity, or scores of tasks.",
        ),
        "import": Command(
            "interchange:import_model",
            "Begin a run with a model or adapters from files of Hugging Face's `save_pretrained`.",
        ),
        "export": Command(
            "interchange:export",
            "Write the newest checkpoint of a run for Hugging Face's `from_pretrained`.",
        ),
    },
    "Plan": {
        "show": Command(
            "show:show",
            "Draw the plan of a run: placement, schedule, all-reduce, and the memory of each rank.",
        ),
        "plan": Command(
            "plan:plan", "Plan a training run, and write a plan file for `jaxpipe train`."
        ),
        "verify": Command(
            "verify:verify",
            "Prove that all ranks of a plan compute what one device computes, at small sizes.",
        ),
        "simulate": Command(
            "simulate:simulate",
            "Predict a step of a configuration: seconds, what binds, bytes per link, memory per "
            "rank.",
        ),
        "profile": Command(
            "profile:profile",
            "Measure forward, backward, split backward and optimizer of each part of a model.",
        ),
    },
    "Inspect": {
        "runs": Command(
            "runs:runs",
            "List runs with model, plan, steps, loss and state; `--png` draws them in one picture.",
        ),
        "trace": Command(
            "trace:trace",
            "Print the bubble of a run, where its time went, who waited for whom, and the "
            "simulated plan.",
        ),
        "doctor": Command(
            "doctor:doctor",
            "Check MPI, ranks, cores, devices, versions, links and disk, and print a fix for each "
            "fault.",
        ),
    },
    "Baselines": {
        "compare": Command(
            "compare:compare",
            "Train with the pipeline, then with each baseline, and write one table and one plot.",
        ),
        "autoshard": CommandGroup(
            "Shard a training step over devices: search, compile and execute strategies.",
            {
                "search": Command(
                    "autoshard:search",
                    "Search a strategy as Alpa's integer program does, compile it, and predict its "
                    "time.",
                ),
                "megatron": Command(
                    "autoshard:megatron",
                    "Compile Megatron's strategy over `--dp` times `--op` devices, and predict its "
                    "time.",
                ),
                "duplex": Command(
                    "autoshard_duplex:search_duplex",
                    "Search a strategy in which two halves of the batch overlap (HiDup), and "
                    "predict its time.",
                ),
                "stages": Command(
                    "autoshard_stages:search_stages",
                    "Divide an Alpa model into stages on submeshes, each sharded as is fastest; "
                    "predict its time.",
                ),
                "compile": Command(
                    "autoshard:compile_strategy",
                    "Compile the strategy of a file, and predict its time.",
                ),
                "execute": Command(
                    "autoshard:execute_strategy",
                    "Execute the strategy of a file on emulated devices, and compare it with one "
                    "device.",
                ),
            },
        ),
        "published": CommandGroup(
            "List systems of the literature, simulate their published runs, plan their layouts.",
            {
                "list": Command(
                    "published:list_systems",
                    "List the systems of the literature, their papers, and what runs them here.",
                ),
                "simulate": Command(
                    "published_simulate:simulate",
                    "Simulate a step of GPT-3 XL, with constants fitted to the runs of DT-FM.",
                ),
                "plan": Command(
                    "published:plan",
                    "Write the plan of a published layout, or of Alpa's inter-operator pass.",
                ),
            },
        ),
    },
    "Clusters": {
        "topo": CommandGroup(
            "List, draw, imitate and measure clusters.",
            {
                "list": Command(
                    "topo:list_clusters",
                    "List this machine and the clusters of the catalogue, with the GPUs of each.",
                ),
                "show": Command(
                    "topo:show_cluster",
                    "Draw a cluster: its hosts, the links between its regions, and its islands.",
                ),
                "tc": Command(
                    "topo:write_tc",
                    "Write tc scripts that make a fast network behave like a cluster: two for each "
                    "host.",
                ),
                "hosts": Command(
                    "topo:write_hosts",
                    "Write a placement as files for `mpirun`: hostfiles and a rankfile.",
                ),
                "probe": Command(
                    "topo:probe",
                    "Measure the network between the ranks of the `mpirun` that starts this; write "
                    "a cluster file.",
                ),
            },
        ),
        "emulate": Command(
            "emulate:emulate",
            "Run a command on this machine over the emulated links of a cluster.",
        ),
        "launch": Command(
            "launch:launch",
            "Print a script or a manifest that starts a run as its plan places it; submit nothing.",
        ),
    },
    "Faults": {
        "run": Command(
            "run:run",
            "Train a model, and restart from the newest intact checkpoint after a failure.",
        ),
        "join": Command(
            "join:join", "Join a run of `jaxpipe run --hosts` from a host that is new, or back."
        ),
        "merge": Command(
            "merge_islands:merge",
            "Merge islands that train apart: each is a run of its own whose `quorum.server` is this"
            " one.",
        ),
        "replay": Command(
            "replay_merges:replay",
            "Train islands again from the log of their merge server, and compare all merges bit for"
            " bit.",
        ),
        "chaos": Command(
            "chaos:chaos",
            "Kill, stop and damage runs on this machine, and check that they recover.",
        ),
    },
}
"""All commands, as `jaxpipe --help` groups them."""

COMMANDS: Mapping[str, Command | CommandGroup] = {
    name: command for topic in TOPICS.values() for name, command in topic.items()
}


def single_commands() -> Mapping[str, Command]:
    """Return every command by the words that call it, such as `topo show`."""
    single = {name: entry for name, entry in COMMANDS.items() if isinstance(entry, Command)}
    grouped = {
        f"{group} {name}": command
        for group, entry in COMMANDS.items()
        if isinstance(entry, CommandGroup)
        for name, command in entry.commands.items()
    }
    return single | grouped
