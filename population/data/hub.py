"""Data sets of the Hugging Face hub: from a local copy, the hub's cache, or the network, in this order.

A local copy is a folder ``<root>/<owner>/<name>`` (or ``<root>/<name>``) laid out as the repository is; root is the
environment variable GRAFT_DATA, else ``datasets`` in the working directory. Without network the error names the files
wanted and where to put them.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from population.data.records import BATCH_ROWS, Row, columns_for, file_rows
from population.errors import DataError

PREFIX = "hub:"
ROOT_VARIABLE = "GRAFT_DATA"
DEFAULT_ROOT = "datasets"
# One request that finds out whether the hub answers at all; the library's own retries take half a minute.
PROBE_S = 10.0
MAX_FILES_NAMED = 8
_REPOSITORY = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"-\d{5}-of-(\d{5})\.")


@dataclass(frozen=True)
class HubData:
    """What is wanted from the hub. source: the name in messages. files: patterns of the files, relative to the
    repository; none where the library `datasets` is to find them by subset and split.
    """

    source: str
    repository: str
    subset: str | None
    split: str | None
    revision: str | None
    files: tuple[str, ...] = ()
    deadline_s: float = 600.0


def repository_of(source: str) -> str:
    """The repository that ``hub:OWNER/NAME`` names. DataError for another form."""
    name = source.removeprefix(PREFIX)
    if not _REPOSITORY.fullmatch(name):
        raise DataError(f"{source}: expected {PREFIX}OWNER/NAME, for instance {PREFIX}HuggingFaceH4/MATH-500")
    return name


def hub_rows(data: HubData, fields: Sequence[str]) -> Iterator[Row]:
    """(record, place for messages) of every record. Raises DataError: no such set, not reachable, too slow, damaged."""
    folder = local_copy(data.repository)
    if not data.files:
        yield from _library_rows(data, folder, fields)
        return
    for path in _wanted(folder, data) if folder else _cached(data) or _wanted(_download(data), data):
        yield from file_rows(path, fields)


def is_here(data: HubData) -> bool:
    """Whether the files can be read without the network."""
    return local_copy(data.repository) is not None or bool(_cached(data))


def data_root() -> Path:
    """Where local copies of hub data sets lie."""
    return Path(os.environ.get(ROOT_VARIABLE) or DEFAULT_ROOT)


def local_copy(repository: str) -> Path | None:
    """The folder of a data set's local copy, None where there is none."""
    root = data_root()
    return next((f for f in (root / repository, root / repository.split("/")[1]) if f.is_dir()), None)


def _wanted(folder: Path, data: HubData) -> list[Path]:
    """The files of a folder that the data set is made of. DataError names what is missing."""
    paths = [path for pattern in data.files for path in sorted(folder.glob(pattern))]
    if not paths:
        there = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
        named = ", ".join(there[:MAX_FILES_NAMED]) + (" ..." if len(there) > MAX_FILES_NAMED else "")
        raise DataError(
            f"{data.source}: {folder} has no {' or '.join(data.files)}; it has {named or 'no files'}: "
            f"lay it out as {data.repository} is on the hub"
        )
    counts = {int(shard.group(1)) for path in paths if (shard := _SHARD.search(path.name))}
    if counts and counts != {len(paths)}:
        raise DataError(
            f"{data.source}: {folder} has {len(paths)} of the {max(counts)} files {' or '.join(data.files)}; "
            "copy the others beside them"
        )
    return paths


def _snapshot(data: HubData) -> Path | None:
    """The data set's folder in the hub's cache, None where there is none."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(data.repository, repo_type="dataset", revision=data.revision, local_files_only=True)
    except LocalEntryNotFoundError:
        return None
    return Path(found)


def _cached(data: HubData) -> list[Path]:
    """The wanted files in the hub's cache; none where they are not there."""
    folder = _snapshot(data)
    found = folder is not None and any(True for pattern in data.files for _ in folder.glob(pattern))
    return _wanted(folder, data) if folder is not None and found else []


def _download(data: HubData) -> Path:
    """Fetch the wanted files into the hub's cache; returns the folder they are in."""
    from huggingface_hub import snapshot_download

    _ask_hub(data)
    patterns = list(data.files)
    return Path(
        _bounded(
            lambda: snapshot_download(
                data.repository, repo_type="dataset", revision=data.revision, allow_patterns=patterns
            ),
            data,
        )
    )


def _library_rows(data: HubData, folder: Path | None, fields: Sequence[str]) -> Iterator[Row]:
    """Records of a set whose files `datasets` finds, locally or on the hub."""
    import datasets

    place = str(folder or _place_on_hub(data))
    # A folder has no revisions.
    revision = data.revision if place == data.repository else None
    loaded = _bounded(lambda: datasets.load_dataset(place, data.subset, split=data.split, revision=revision), data)
    if isinstance(loaded, dict):
        if len(loaded) > 1:
            raise DataError(f"{data.source}: has the splits {', '.join(loaded)}; name one: split: {next(iter(loaded))}")
        loaded = next(iter(loaded.values()))
    columns = columns_for(loaded.column_names, fields)
    if columns:
        loaded = loaded.select_columns(columns)
    number = 0
    for table in loaded.with_format("arrow").iter(BATCH_ROWS):
        for record in table.to_pylist():
            number += 1
            yield record, f"{place} record {number}"


def _place_on_hub(data: HubData) -> Path | str:
    """The repository where the hub answers; else what of it is in the cache."""
    try:
        _ask_hub(data)
    except _Unreachable:
        folder = _snapshot(data)
        # Told to stay offline, `datasets` looks into its own cache.
        if folder is None and not os.environ.get("HF_HUB_OFFLINE"):
            raise
        return folder or data.repository
    return data.repository


class _Unreachable(DataError):
    """The hub does not answer."""


def _ask_hub(data: HubData) -> None:
    """One request, so that an offline machine and a wrong name are told apart at once, and by name."""
    import httpx
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        HfApi().dataset_info(data.repository, revision=data.revision, timeout=PROBE_S)
    except (httpx.TransportError, OfflineModeIsEnabled, TimeoutError) as error:
        raise _Unreachable(_offline_message(data, error)) from None
    except RepositoryNotFoundError:
        raise DataError(
            f"{data.source}: the hub has no data set {data.repository} that this machine may read; "
            "check the name, or log in with hf auth login"
        ) from None
    except HfHubHTTPError as error:
        raise DataError(f"{data.source}: {_one_line(error)}; check revision and access") from None


def _offline_message(data: HubData, error: Exception) -> str:
    target = data_root() / data.repository
    options = [f"--include {shlex.quote(pattern)}" for pattern in data.files]
    if data.revision:
        options.append(f"--revision {shlex.quote(data.revision)}")
    command = " ".join(["hf download", data.repository, "--repo-type dataset", *options, f"--local-dir {target}"])
    files = ", ".join(str(target / pattern) for pattern in data.files or ("...",))
    return (
        f"{data.source}: {data.repository} is not on this machine and the hub cannot be reached "
        f"({type(error).__name__}: {_one_line(error)}); on a machine with network run `{command}` and copy the folder "
        f"here; looked for {files} ({ROOT_VARIABLE} names another folder than {data_root()})"
    )


def _bounded(load: Callable[[], Any], data: HubData) -> Any:
    """The result of a call that may wait for the network; DataError past the deadline or for its failure."""
    future: Future[Any] = Future()

    def work() -> None:
        try:
            future.set_result(load())
        except BaseException as error:
            future.set_exception(error)

    # A daemon: a transfer that hangs must not keep the interpreter.
    threading.Thread(target=work, name="graft-data", daemon=True).start()
    try:
        return future.result(data.deadline_s)
    except TimeoutError as error:
        if future.done():
            raise DataError(_offline_message(data, error)) from None
        raise DataError(
            f"{data.source}: {data.repository} did not arrive within {data.deadline_s:g} s; "
            "what has arrived is kept: try again, or raise load_s"
        ) from None
    except ConnectionError as error:
        raise DataError(_offline_message(data, error)) from None
    except (OSError, ValueError, RuntimeError) as error:
        raise DataError(f"{data.source}: {data.repository} cannot be read ({_one_line(error)})") from None


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300]
