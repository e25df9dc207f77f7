"""TensorBoard's event files: bytes as the format says, and, where TensorBoard is installed, as it reads them."""

from __future__ import annotations

import struct
from pathlib import Path
from types import SimpleNamespace

import pytest

from server.trackers import event_file
from server.trackers.event_file import EventFile
from server.trackers.tracker import Settings

RUN = SimpleNamespace(uid="run-1")


@pytest.mark.parametrize(
    ("content", "crc"), [(b"123456789", 0xE3069283), (b"", 0), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)]
)
def test_the_checksum_is_crc_32c_masked(content: bytes, crc: int) -> None:
    """Values of RFC 3720, B.4, and of the catalogue of CRCs."""
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    assert event_file._checksum(content) == struct.pack("<I", masked)


def _records(file: Path) -> list[bytes]:
    content, found = file.read_bytes(), []
    while content:
        (length,) = struct.unpack("<Q", content[:8])
        assert event_file._checksum(content[:8]) == content[8:12]
        body = content[12 : 12 + length]
        assert event_file._checksum(body) == content[12 + length : 16 + length]
        found.append(body)
        content = content[16 + length :]
    return found


def test_a_step_is_one_record_of_the_documented_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: 1.5)
    tracker = EventFile(Settings("tensorboard", tmp_path), RUN, 4)  # type: ignore[arg-type]
    tracker.log(300, {"a/loss": 0.25})
    tracker.finish("finished")
    (file,) = tmp_path.glob("run-1/events.out.tfevents.*")
    wall = b"\x09" + struct.pack("<d", 1.5)
    value = b"\x0a\x06a/loss" + b"\x15" + struct.pack("<f", 0.25)
    summary = b"\x0a" + bytes([len(value)]) + value
    assert _records(file) == [
        wall + b"\x1a\x0dbrain.Event:2",
        wall + b"\x10\x05\x3a\x02\x08\x01",
        wall + b"\x10\xac\x02\x2a" + bytes([len(summary)]) + summary,
    ]


def test_tensorboard_reads_it_and_a_resumed_run_replaces_what_came_later(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for after, steps in ((0, range(1, 6)), (3, range(4, 8))):
        tracker = EventFile(Settings("tensorboard", tmp_path), RUN, after)  # type: ignore[arg-type]
        for step in steps:
            tracker.log(step, {"ö/loss": step + after, "b": -1.0})
        tracker.finish("finished")
    read = accumulator.EventAccumulator(str(tmp_path / "run-1"))
    read.Reload()
    assert read.Tags()["scalars"] == ["ö/loss", "b"]
    assert [(one.step, one.value) for one in read.Scalars("ö/loss")] == [
        (1, 1), (2, 2), (3, 3), (4, 7), (5, 8), (6, 9), (7, 10),
    ]  # fmt: skip
