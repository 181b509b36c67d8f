"""Parquet in object storage: what an address stands for, and what to do where it cannot be read.

polars reads it, with the endpoint, the region and the credentials that it finds in the environment.
"""

import html
import os
import re
from typing import Any

import polars as pl

from analyzers.readers.attributes import shorten
from otel_cache.errors import CaptureError, StorageError

STORES = ("s3://", "s3a://", "gs://", "gcs://", "az://", "azure://", "abfs://", "abfss://")
"""Schemes that polars reads by itself."""
OPTIONS: dict[str, Any] = {"max_retries": 2, "retry_timeout_ms": 10_000, "connect_timeout": "5s"}
"""How patient reading is: what does not answer is asked a few times, not for minutes."""
LISTING: dict[str, Any] = {**OPTIONS, "timeout": "10s"}
"""Of finding objects, where answers are short."""
BROKEN = (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError)
"""What polars raises where it cannot read."""
MAGIC = frozenset("*[")
"""What makes an address a pattern, for polars."""

_FILE, _NOTHING = "file", "otel_cache.nothing"
_ENDPOINTS = ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT")
_NOT_THERE = "Object at location"
"""How the error begins that says of a name that nothing has it."""
_VARIABLES = (
    (("s3",), "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION and AWS_ENDPOINT_URL"),
    (("gs", "gc"), "GOOGLE_APPLICATION_CREDENTIALS"),
    (("az", "ab"), "AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY"),
)
_METADATA = ("/latest/api/token", "/latest/meta-data", "computeMetadata", "metadata/identity", "metadata.google")
"""Parts of the URLs that cloud machines get their credentials from: they are asked where the environment has none."""


def options(source: object) -> dict[str, Any] | None:
    """Return how polars shall ask for `source`; None: it is no address."""
    return OPTIONS if isinstance(source, str) else None


def is_address(text: str) -> bool:
    """Whether `text` is an address in object storage, and no file."""
    return text.startswith(STORES)


def objects(address: str) -> list[str]:
    """Return the addresses of the objects of Parquet that `address` stands for, in order.

    It is one object; a folder or bucket, with all `*.parquet` below it that are not hidden; or a pattern of polars,
    with `*`, `**` and `[...]`.

    Raises:
        CaptureError: there are none, or they are no Parquet; `StorageError` where the storage cannot be asked.

    """
    bucket, _, name = address.partition("://")[2].partition("/")
    if not bucket:
        raise CaptureError(f"{address}: names no bucket; give {address.partition('://')[0]}://BUCKET/NAME")
    for variable in _ENDPOINTS if address.startswith("s3") else ():
        if not os.environ.get(variable, "http://").startswith(("http://", "https://")):
            raise StorageError(f"{address}: the variable {variable} is no URL; it begins with http:// or https://")
    try:
        if not name or name.endswith("/"):
            found = _below(address)
        elif MAGIC & set(address):
            found = _list(address)
        else:
            found = _one_or_below(address)
    except BROKEN as error:
        raise failure(error, address) from error
    if not found:
        raise CaptureError(f"{address}: no object of Parquet is there (*.parquet); check bucket, folder and pattern")
    return sorted(found)


def failure(error: BaseException, address: str) -> CaptureError:
    """Return what to say of an error that polars raised at `address`: what is wrong, where, and what to do."""
    said = str(error)
    if not isinstance(error, OSError) and "parquet" in said:
        return CaptureError(
            f"{address}: holds what is no Parquet, or not the whole of it ({shorten(_plain(said))}); of object storage "
            "only Parquet is read: download the rest, or make Parquet of it with `otel-cache convert`"
        )
    scheme = address.partition(":")[0]
    variables = next((names for schemes, names in _VARIABLES if scheme.startswith(schemes)), "its credentials")
    code, message = _element("Code", said), _element("Message", said)
    reason = shorten(": ".join(part for part in (code, message) if part) or _last_cause(said))
    if "Bucket" in code or "Container" in code:
        return StorageError(f"{address}: there is no such bucket ({reason}); check its name and {variables}")
    if any(part in said for part in _METADATA):
        return StorageError(f"{address}: no credentials for it were found ({reason}); set {variables}")
    if _NOT_THERE in said and code in ("", "NoSuchKey", "BlobNotFound"):
        return StorageError(f"{address}: no such object; check bucket, folder and name")
    if code or isinstance(error, PermissionError):
        return StorageError(f"{address}: the storage refuses to give it ({reason}); check {variables}")
    asked = re.search(r"https?://[^/\s]+", said)
    where = f"{asked[0]} does not answer" if asked else "cannot be read"
    return StorageError(f"{address}: {where} ({reason}); check {variables}")


def _below(folder: str) -> list[str]:
    found = _list(f"{folder.rstrip('/')}/**/*.parquet")
    return [each for each in found if not each.rpartition("/")[2].startswith(".")]


def _one_or_below(address: str) -> list[str]:
    try:
        _list(address)
    except OSError as error:
        if _NOT_THERE in str(error) and (found := _below(address)):
            return found
        raise
    return [address]


def _list(pattern: str) -> list[str]:
    """Return the objects that `pattern` matches; what is no pattern has to be there."""
    # A column that none has: nothing is read but where each one ends.
    scan = pl.scan_parquet(
        pattern, schema={_NOTHING: pl.Boolean}, missing_columns="insert", extra_columns="ignore",
        include_file_paths=_FILE, storage_options=LISTING,
    )  # fmt: skip
    found: list[str] = scan.select(pl.col(_FILE).unique()).collect()[_FILE].to_list()
    return found


def _element(name: str, text: str) -> str:
    """Return what an answer in XML says in the first element of this name; "" where there is none."""
    found = re.search(rf"<{name}>([^<]*)</{name}>", text)
    return " ".join(html.unescape(found[1]).split()) if found else ""


def _last_cause(text: str) -> str:
    """Return the last of the causes that polars lists below an error, else what it says."""
    last = text.strip().rpartition("\n")[2].strip()
    return re.sub(r"^\d+: ", "", last) if "Caused by" in text else _plain(text)


def _plain(text: str) -> str:
    """Return an error of polars on one line, without what it says of itself and of the path."""
    line = " ".join(text.split()).partition(" (path: ")[0].partition("; note: ")[0]
    return re.sub(r"^(object-store error: |Generic \w+ error: |parquet: )+", "", line)
