"""Whole tables of a run, in pieces, on both kinds of database."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlalchemy import func, select

from server.store import read_tables, schema
from server.store.reader import Reader, StoreError, open_reader
from tests.store.synthetic import make_store


def whole(reader: Reader, table: str, run: str = "latest") -> pa.Table:
    return pa.Table.from_batches(reader.rows(run, table), reader.columns(table))


def test_every_table_of_a_run_is_handed_out_whole(reader: Reader) -> None:
    with reader._connection() as connection:
        for name in reader.tables():
            count = connection.scalar(select(func.count()).select_from(read_tables.TABLES[name]))
            assert whole(reader, name).num_rows == count, name


def test_numbers_of_the_rows_are_those_of_the_other_answers(reader: Reader) -> None:
    groups, counts = whole(reader, "groups").to_pandas(), reader.member_counts("latest", 1, 24)
    assert groups.groupby("member")["successes"].sum().tolist() == counts["successes"].tolist()
    assert whole(reader, "responses").num_rows == groups["n"].sum()
    moved, pairs = whole(reader, "transfers").to_pandas(), reader.pair_counts("latest", 1, 24)
    for (receiver, source), own in moved.groupby(["receiver", "source"]):
        assert own["admitted"].sum() == pairs["admitted"][receiver, source]


def test_a_metric_is_called_by_its_name_and_what_is_no_number_is_missing(reader: Reader) -> None:
    metrics = whole(reader, "metrics").to_pandas()
    assert set(metrics["name"]) == set(reader.metric_names("latest"))
    losses = metrics[(metrics["name"] == "loss") & (metrics["step"] == 5)]
    assert losses.loc[~losses["finite"], "numerator"].isna().all()
    assert (~losses["finite"]).any()


def test_rows_come_in_pieces_in_the_order_of_the_key(reader: Reader) -> None:
    with reader._run("latest") as (connection, key):
        pieces = list(read_tables.rows(connection, key, "groups", chunk=100))
    assert len(pieces) > 2
    assert max(piece.num_rows for piece in pieces) <= 100
    ids = pa.Table.from_batches(pieces)["id"].to_pylist()
    assert ids == sorted(ids)


def test_rows_of_another_run_stay_out(url: str) -> None:
    make_store(url, steps=2, prompts=3)
    make_store(url, steps=3, prompts=4, uid="other")
    with open_reader(url) as reader:
        steps = {run: whole(reader, "steps", run)["step"].to_pylist() for run in ("synthetic", "other")}
        assert steps == {"synthetic": [1, 2], "other": [1, 2, 3]}
        sizes = {run: whole(reader, "responses", run).num_rows for run in steps}
        groups = {run: sum(whole(reader, "groups", run)["n"].to_pylist()) for run in steps}
        assert sizes == groups
        asked = {run: set(whole(reader, "prompts", run)["key"].to_pylist()) for run in steps}
        outcomes = {run: set(whole(reader, "outcomes", run)["prompt"].to_pylist()) for run in steps}
        assert all(outcomes[run] <= asked[run] for run in steps)


def test_the_table_of_runs_is_not_handed_out(reader: Reader) -> None:
    assert schema.runs.name not in reader.tables()
    assert all("config" not in reader.columns(name).names for name in reader.tables())


def test_an_unknown_run_is_named(reader: Reader) -> None:
    with pytest.raises(StoreError, match="no run 'nobody'"):
        next(iter(reader.rows("nobody", "groups")))
