"""Replays of recorded runs: kept beside the run they were made from, whoever writes or wrote it."""

from __future__ import annotations

import json
import time

from sqlalchemy import Connection, insert, select

from server.store import schema
from server.store.connections import check_version, locate, readable_errors, schema_version
from server.store.read_runs import RunKey, resolve
from server.store.records import ReplayRecord
from server.store.views import ReplayInfo


def record_replay(url: str, replay: ReplayRecord) -> int:
    """Store a replay and return its id. The run may be live: this needs no lease and changes nothing of the run.

    StoreError when the store or the run does not exist, or the database cannot be written.
    """
    location = locate(url)
    with readable_errors("storing the replay", location):
        engine = location.writer_engine(create=False)
        try:
            with engine.begin() as connection:
                check_version(schema_version(connection), location)
                row = {
                    "run": resolve(connection, replay.run).id, "created": time.time(),
                    "first_step": replay.first_step, "step": replay.last_step,
                    "settings": json.dumps(dict(replay.settings)), "result": json.dumps(dict(replay.result)),
                }  # fmt: skip
                table = schema.replays
                return int(connection.execute(insert(table).values(row).returning(table.c.id)).scalar_one())
        finally:
            engine.dispose()


def replays(connection: Connection, key: RunKey) -> list[ReplayInfo]:
    """Every stored replay of a run, newest first."""
    table = schema.replays
    return [
        ReplayInfo(
            row.id,
            row.created,
            ReplayRecord(key.uid, row.first_step, row.step, json.loads(row.settings), json.loads(row.result)),
        )
        for row in connection.execute(select(table).where(table.c.run == key.id).order_by(table.c.id.desc()))
    ]
