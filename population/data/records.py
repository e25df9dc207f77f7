"""Records of JSON lines, CSV and Parquet files, read as a stream, and the fields inside them."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from population.errors import DataError

Row = tuple[Mapping[str, Any], str]

BATCH_ROWS = 4096


def field_value(record: Any, path: str) -> Any:
    """What stands at a dotted path (``extra_info.answer``, ``prompt.0.content``); None where nothing does.

    A field whose own name has the dots in it is taken first.
    """
    if isinstance(record, Mapping) and path in record:
        return record[path]
    head, dot, rest = path.partition(".")
    if isinstance(record, Mapping):
        inner = record.get(head)
    elif isinstance(record, Sequence) and not isinstance(record, str) and head.isdigit() and int(head) < len(record):
        inner = record[int(head)]
    else:
        return None
    return field_value(inner, rest) if dot else inner


def columns_for(names: Sequence[str], fields: Iterable[str]) -> list[str]:
    """The top-level columns that hold some fields, in their own order: the others need not be read."""
    wanted = {field if field in names else field.partition(".")[0] for field in fields}
    return [name for name in names if name in wanted]


def file_rows(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    """(record, place for messages) of every record of a file; of a Parquet file only the columns of ``fields``.

    Raises DataError for an unknown kind of file or one that is not there.
    """
    if path.suffix not in READERS:
        raise DataError(f"{path}: unknown kind of file; give a {', '.join(READERS)} file")
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the source of the data set")
    return READERS[path.suffix](path, fields)


def _json_lines(path: Path, _fields: Sequence[str]) -> Iterator[Row]:
    with path.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
                raise DataError(f"{path} line {number}: not valid JSON ({reason})") from None
            if not isinstance(record, dict):
                raise DataError(f"{path} line {number}: expected an object, found {type(record).__name__}")
            yield record, f"{path} line {number}"


def _csv_rows(path: Path, _fields: Sequence[str]) -> Iterator[Row]:
    with path.open(newline="", encoding="utf-8-sig") as lines:
        for number, record in enumerate(csv.DictReader(lines), 2):
            yield record, f"{path} line {number}"


def _parquet_rows(path: Path, fields: Sequence[str]) -> Iterator[Row]:
    import pyarrow.parquet as parquet

    with parquet.ParquetFile(path) as file:
        names = file.schema_arrow.names
        number = 0
        for batch in file.iter_batches(BATCH_ROWS, columns=columns_for(names, fields) or names):
            for record in batch.to_pylist():
                number += 1
                yield record, f"{path} record {number}"


READERS: dict[str, Callable[[Path, Sequence[str]], Iterator[Row]]] = {
    ".jsonl": _json_lines,
    ".csv": _csv_rows,
    ".parquet": _parquet_rows,
}
