"""An S3 server of a test: moto's, on a free port of this machine, with one bucket."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch
from urllib.request import Request, urlopen

from moto.moto_server.threaded_moto_server import ThreadedMotoServer
from s3fs import S3FileSystem

BUCKET = "checkpoints"


@contextmanager
def s3_server() -> Iterator[str]:
    """Serve S3 while the body runs, and name it in the environment; the value is its address."""
    logging.getLogger("werkzeug").setLevel(logging.WARNING)  # a line for each request
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    address = f"http://{host}:{port}"
    environment = {
        "AWS_ENDPOINT_URL": address,
        "AWS_ACCESS_KEY_ID": "of-a-test",
        "AWS_SECRET_ACCESS_KEY": "of-a-test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    try:
        with patch.dict("os.environ", environment):
            # One process has one store, which outlives a server, and one client for all servers.
            urlopen(Request(f"{address}/moto-api/reset", method="POST"), timeout=10.0).close()
            S3FileSystem.clear_instance_cache()
            S3FileSystem().mkdir(BUCKET)
            yield address
    finally:
        S3FileSystem.clear_instance_cache()
        server.stop()
