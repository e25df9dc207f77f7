"""TensorBoard's event files, written without TensorBoard: length-prefixed protocol buffers with checksums.

The format is public: a record is its length (uint64), the length's checksum, the bytes, and their checksum, all little
endian (tensorflow/core/lib/io/record_writer.h); the bytes are an `Event` (tensorflow/core/util/event.proto). Only the
six fields used here are encoded.
"""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping

from server.store.views import RunInfo
from server.trackers.tracker import Outcome, Settings

_DOUBLE, _BYTES, _FLOAT, _VARINT = 1, 2, 5, 0
_VERSION = b"brain.Event:2"
_START = 1


class EventFile:
    """One file of scalars in `folder`/`uid`; TensorBoard drops what older files of the run have after `after`."""

    def __init__(self, settings: Settings, run: RunInfo, after: int) -> None:
        folder = settings.folder / run.uid
        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 10**6:013d}.{socket.gethostname()}.{run.uid}"
        self._file = open(folder / name, "ab")  # noqa: SIM115 - lives as long as the tracker
        self._write(_field(3, _BYTES, _VERSION))
        session = _field(1, _VARINT, _START)
        self._write(_field(2, _VARINT, after + 1) + _field(7, _BYTES, session))
        self._file.flush()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        scalars = b"".join(
            _field(1, _BYTES, _field(1, _BYTES, tag.encode()) + _field(2, _FLOAT, value))
            for tag, value in values.items()
        )
        self._write(_field(2, _VARINT, step) + _field(5, _BYTES, scalars))
        self._file.flush()

    def finish(self, outcome: Outcome) -> None:
        self._file.close()

    def _write(self, event: bytes) -> None:
        content = _field(1, _DOUBLE, time.time()) + event
        length = struct.pack("<Q", len(content))
        self._file.write(length + _checksum(length) + content + _checksum(content))


def _field(number: int, kind: int, value: float | bytes) -> bytes:
    """One field of a protocol buffer: its key and its value."""
    key = _varint(number << 3 | kind)
    if kind == _VARINT:
        return key + _varint(int(value))
    if isinstance(value, bytes):
        return key + _varint(len(value)) + value
    return key + struct.pack("<d" if kind == _DOUBLE else "<f", value)


def _varint(value: int) -> bytes:
    """Seven bits a byte, the lowest first; the top bit says that more follow."""
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def _table() -> list[int]:
    rows = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        rows.append(byte)
    return rows


_CRC = _table()


def _checksum(content: bytes) -> bytes:
    """The masked CRC-32C of a record's part."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)
