"""The cache of folders: whole or absent, whatever is killed or damaged."""

from __future__ import annotations

import fcntl
import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from population.demo.cache import MANIFEST, CacheBusyError, cached_folder, configuration_hash, is_whole

CONFIGURATION = {"member": "llama", "seed": 1}


def counting_builder() -> tuple[list[Path], Callable[[Path], None]]:
    """A builder that writes one file, and the folders it was asked to fill."""
    asked: list[Path] = []

    def build(folder: Path) -> None:
        asked.append(folder)
        (folder / "weights").write_text("learnt")

    return asked, build


def test_a_folder_is_built_once_and_then_found(tmp_path: Path) -> None:
    asked, build = counting_builder()
    folder = cached_folder(tmp_path / "new" / "cache", "m", CONFIGURATION, build)
    assert cached_folder(tmp_path / "new" / "cache", "m", CONFIGURATION, build) == folder
    assert (folder / "weights").read_text() == "learnt"
    assert len(asked) == 1


def test_another_configuration_has_another_folder(tmp_path: Path) -> None:
    asked, build = counting_builder()
    folders = {cached_folder(tmp_path, "m", {**CONFIGURATION, "seed": seed}, build) for seed in (1, 2)}
    assert len(folders) == len(asked) == 2


def test_the_hash_ignores_the_order_of_keys_and_nothing_else() -> None:
    assert configuration_hash({"a": 1, "b": [2]}) == configuration_hash({"b": [2], "a": 1})
    assert configuration_hash({"a": 1, "b": [2]}) != configuration_hash({"a": 1, "b": [3]})


def test_a_build_that_fails_leaves_no_folder_and_is_done_again(tmp_path: Path) -> None:
    def fail(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        cached_folder(tmp_path, "m", CONFIGURATION, fail)
    assert not list(tmp_path.glob("m-*"))
    folder = cached_folder(tmp_path, "m", CONFIGURATION, counting_builder()[1])
    assert (folder / "weights").read_text() == "learnt"
    assert [path for path in tmp_path.iterdir() if path.is_dir()] == [folder]


def without_manifest(folder: Path) -> None:
    (folder / MANIFEST).unlink()


def with_half_a_manifest(folder: Path) -> None:
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text[: len(text) // 2])


def with_a_cut_file(folder: Path) -> None:
    (folder / "weights").write_text("lea")


def without_a_file(folder: Path) -> None:
    (folder / "weights").unlink()


def with_another_configuration(folder: Path) -> None:
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["configuration"]["seed"] = 99
    (folder / MANIFEST).write_text(json.dumps(manifest))


def with_a_manifest_of_another_shape(folder: Path) -> None:
    (folder / MANIFEST).write_text("[]")


@pytest.mark.parametrize(
    "damage",
    [
        without_manifest,
        with_half_a_manifest,
        with_a_cut_file,
        without_a_file,
        with_another_configuration,
        with_a_manifest_of_another_shape,
    ],
)
def test_a_damaged_folder_is_not_used_but_built_again(damage: Callable[[Path], None], tmp_path: Path) -> None:
    asked, build = counting_builder()
    folder = cached_folder(tmp_path, "m", CONFIGURATION, build)
    damage(folder)
    assert not is_whole(folder, CONFIGURATION)
    assert cached_folder(tmp_path, "m", CONFIGURATION, build) == folder
    assert is_whole(folder, CONFIGURATION)
    assert len(asked) == 2


def test_two_builders_of_one_entry_wait_for_one_another(tmp_path: Path) -> None:
    inside, let_go, calls = threading.Event(), threading.Event(), []

    def slow(folder: Path) -> None:
        calls.append(folder)
        inside.set()
        assert let_go.wait(60)
        (folder / "weights").write_text("learnt")

    threads = [threading.Thread(target=cached_folder, args=(tmp_path, "m", CONFIGURATION, slow)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert inside.wait(60)
    let_go.set()
    for thread in threads:
        thread.join(60)
    assert len(calls) == 1


def test_waiting_for_another_process_ends_at_the_deadline(tmp_path: Path) -> None:
    folder = tmp_path / f"m-{configuration_hash(CONFIGURATION)}"
    with (tmp_path / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CacheBusyError, match="choose another cache folder"):
            cached_folder(tmp_path, "m", CONFIGURATION, counting_builder()[1], lock_deadline_s=0.2)
