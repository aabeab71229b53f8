"""`jaxpipe merge`: merges islands that train apart, and wait for nobody."""

from pathlib import Path
from typing import Annotated

import tyro


def merge(
    config: tyro.conf.Positional[Path],
    *,
    out: Annotated[Path, tyro.conf.arg(aliases=["-o"], metavar="FOLDER")],
    settings: Annotated[tuple[str, ...], tyro.conf.arg(name="set", metavar="KEY=VALUE")] = (),
    listen: str = "127.0.0.1:0",
) -> int:
    """Merge islands that train apart: each is a run of its own whose `quorum.server` is this one.

    Ends when all islands have ended, and with Ctrl-C; started again in the same folder, it
    continues from its newest anchor, and islands find it at its old address.

    Args:
        config: the TOML file of the islands; of the section `quorum`, `least`, `grace_s`,
            `discount`, `learning_rate` and `momentum` are the server's.
        out: its folder: `merge.json` with address and key, `merges.jsonl`, checkpoints.
        settings: a change to the configuration, such as `quorum.least=6`; may be repeated.
        listen: the HOST:PORT at which islands reach it; port 0 is any free one, and no host all
            addresses of this one.
    """
    from jaxpipe.config import load_config
    from jaxpipe.run.hosts.listen import listen_address
    from jaxpipe.run.quorum.serve_islands import serve_islands

    host, port = listen_address(listen)
    serve_islands(load_config(config, settings), out, host=host, port=port, say=_show)
    return 0


def _show(line: str) -> None:
    print(line, flush=True)
