"""Checks of paths and URLs in the configuration, before anything is opened."""

_LONGEST_PATH = 4000
_LONGEST_NAME = 255
"""Of a file, in bytes: the limit of most file systems."""


def check_url(name: str, url: str, *, otherwise: str) -> None:
    """Check that a string can be the URL of a prefix in object storage, without a password.

    `otherwise` is what else the field may be.

    Raises:
        ValueError: it cannot.
    """
    scheme, _, rest = url.partition("://")
    if "@" in rest.partition("/")[0]:  # the value is not shown: it would be in logs
        raise ValueError(
            f"`{name}` must be a URL without credentials, which would be in files and logs; "
            "set them in the environment, as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        )
    if not scheme or not rest.strip("/") or not url.isprintable():
        raise ValueError(
            f"`{name}` must be a URL as s3://BUCKET/PREFIX, is {url!r:.80}; {otherwise}"
        )


def check_dataset_folder(folder: str) -> None:
    """Check that a string can be the folder of a dataset, on a disk or in object storage.

    Raises:
        ValueError: it cannot.
    """
    check_path("folder", folder)
    if "://" in folder:
        check_url("folder", folder, otherwise="or the path of a folder of this machine")


def check_path(name: str, path: str) -> None:
    """Check that a string can be the path of a file or a folder.

    Raises:
        ValueError: it is empty, too long, or has a character that no path may have.
    """
    # Arguments that are not UTF-8 arrive with surrogates in place of their bytes.
    parts = path.encode(errors="surrogateescape").split(b"/")
    if (
        not path
        or "\0" in path
        or len(path) > _LONGEST_PATH
        or max(map(len, parts)) > _LONGEST_NAME
    ):
        raise ValueError(
            f"`{name}` must be a path of 1 to {_LONGEST_PATH} characters, {_LONGEST_NAME} bytes "
            f"between slashes and no NUL, is {path!r:.80}"
        )
