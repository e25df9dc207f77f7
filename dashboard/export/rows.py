"""Every row that a store holds of a run, table by table, as CSV and Parquet: read and written in pieces."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from dashboard.export import files
from server.store.reader import Reader


def write(reader: Reader, run: str, table: str, folder: Path) -> int:
    """`table`.csv and `table`.parquet in the folder; how many rows there are. Memory holds one piece of them."""
    columns = reader.columns(table)
    written = 0
    parquet = pq.ParquetWriter(folder / f"{table}.parquet", columns, compression="zstd")
    with parquet, (folder / f"{table}.csv").open("wb") as csv:
        csv.write(files.csv(columns.empty_table().to_pandas()))
        for batch in reader.rows(run, table):
            parquet.write_batch(batch)
            csv.write(files.csv(_frame(batch), header=False))
            written += batch.num_rows
    return written


def _frame(batch: pa.RecordBatch) -> pd.DataFrame:
    """With whole numbers as such even where some are missing, and bytes as hexadecimal digits."""
    frame = batch.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}.get)
    binary = [field.name for field in batch.schema if pa.types.is_binary(field.type)]
    return frame.assign(**{name: [None if one is None else one.hex() for one in frame[name]] for name in binary})
