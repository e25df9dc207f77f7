"""Tables as CSV and Parquet.

CSV is opened by spreadsheets, which run a cell that begins like a formula: such text gets an apostrophe before it.
Numbers never do, and Parquet keeps every text as it is. What is missing is empty in both.
"""

from __future__ import annotations

import io
import re
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

# With their full-width forms, which some programs take for the same.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def stem(page: str, name: str) -> str:
    """The name of a file without its suffix: it says the page once, and holds what every file system takes."""
    whole = name if name.startswith(f"{page}_") else f"{page}_{name}"
    return re.sub(r"[^a-z0-9]+", "_", whole.lower()).strip("_")


def csv(table: pd.DataFrame, header: bool = True) -> bytes:
    """UTF-8 with a header line; texts that begin like a formula are made harmless."""
    safe = table.rename(columns=harmless)
    for place, name in enumerate(table.columns):
        column = table[name]
        if not pd.api.types.is_numeric_dtype(column):
            safe.isetitem(place, column.map(lambda value: harmless(_encodable(value))))
    return safe.to_csv(index=False, header=header, lineterminator="\n").encode("utf-8", "replace")


def harmless(value: Any) -> Any:
    """A text that no spreadsheet runs, its lines ended by a line feed: a bare carriage return would begin another row.
    Anything else as it is."""
    if not isinstance(value, str):
        return value
    lines = value.replace("\r\n", "\n").replace("\r", "\n")
    return f"'{lines}" if value.lstrip(" ").startswith(_FORMULA) else lines


def parquet(table: pd.DataFrame) -> bytes:
    """One row group, compressed with zstd; columns keep their types."""
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(table.map(_encodable), preserve_index=False), out, compression="zstd")
    return out.getvalue()


def _encodable(value: Any) -> Any:
    """Half of a surrogate pair, which a model can write, is in no file."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
