"""What an island and its merge server have in common, without which they do not train one model."""

from dataclasses import dataclass

from jaxpipe.outer import QuorumConfig
from jaxpipe.outer.merge_log import Began
from jaxpipe.outer.quorum import Merger
from jaxpipe.run.hosts.join_words import JoinRequest
from jaxpipe.run.quorum.messages import Hello, MessageError, Shapes, payload_bytes

_MOST_PARAMETER_BYTES = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Alike:
    """What is the same on all islands and the server: settings, and the version of jaxpipe."""

    quorum: QuorumConfig
    batch: int
    seed: int
    versions: str

    def began(self, merger: Merger | None) -> Began:
        """Return the event of a server that begins, with a merger if it continues."""
        return Began(
            anchor=0 if merger is None else merger.version,
            digest="" if merger is None else merger.digest(),
            islands=self.quorum.islands,
            learning_rate=self.quorum.learning_rate,
            momentum=self.quorum.momentum,
            discount=self.quorum.discount,
            codec=self.quorum.codec,
            batch=self.batch,
            seed=self.seed,
            versions=self.versions,
        )

    def refusal(self, request: JoinRequest) -> str:
        """Return why an island of another version is not taken; empty for one of the same."""
        if request.versions == self.versions:
            return ""
        return (
            f"jaxpipe is {request.versions:.200} on {request.host:.80}, and {self.versions} on the "
            "server; install the same"
        )

    def check(self, hello: Hello, shapes: Shapes) -> None:
        """Check an island; `shapes` are those of the model, if there is one.

        Raises:
            MessageError: a setting, or the model, is another one.
        """
        if not 0 <= hello.island < self.quorum.islands:
            raise MessageError(
                f"`quorum.island` ({hello.island}) must be below `quorum.islands` of the server "
                f"({self.quorum.islands})"
            )
        for name, value, here in (
            ("train.batch", hello.batch, self.batch),
            ("run.seed", hello.seed, self.seed),
            ("quorum.islands", hello.islands, self.quorum.islands),  # it decides the samples
            ("quorum.codec", hello.codec, self.quorum.codec.value),
        ):
            if value != here:
                raise MessageError(
                    f"`{name}` is {value!r:.80} on island {hello.island}, and {here!r} on the "
                    "server; set them alike"
                )
        if shapes and dict(hello.shapes) != dict(shapes):
            raise MessageError(f"`model` of island {hello.island} is another one; set them alike")
        if payload_bytes(hello.shapes) > _MOST_PARAMETER_BYTES:
            raise MessageError("`model` has more parameters than a server takes")
