"""A full disk costs the step that met it and nothing else: the record stays sound and the step can be stored later."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from server.store.records import EventRecord, StoreError
from server.store.writer import open_writer
from tests.store.audit import audit
from tests.store.synthetic import Scenario

SCENARIO = Scenario(steps=40, prompts=6, n=4)
ROOT = Path(__file__).parents[2]

# Long responses, so that it is a shard and not the database that outgrows the limit.
LIMITED = """
import resource, sys
from pathlib import Path
from server.store.records import StoreError
from server.store.writer import open_writer
from tests.store.audit import audit
from tests.store.synthetic import Scenario

folder = Path(sys.argv[1])
scenario = Scenario(steps=3, prompts=6, n=4, tokens=20_000)
writer = open_writer(str(folder / "store.db"))
writer.start_run(scenario.run())
hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
try:
    writer.commit(scenario.step(1))
except StoreError as fault:
    print(fault)
resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
print([path.name for path in folder.rglob("*step*")], audit(folder / "store.db"))
print(writer.commit(scenario.step(1)), audit(folder / "store.db"))
writer.close()
"""

# A real file system of 3 MB, mounted where nobody else sees it, written until it is full and freed again.
SMALL_DISK = """
import sys
from pathlib import Path
from server.store.records import StoreError
from server.store.writer import open_writer
from tests.store.audit import audit
from tests.store.synthetic import Scenario

folder = Path(sys.argv[1])
ballast = folder / "ballast"
ballast.write_bytes(b"x" * 1_000_000)
scenario = Scenario(steps=400, prompts=6, n=4, tokens=200)
writer = open_writer(str(folder / "store.db"))
writer.start_run(scenario.run())
step = 1
while True:
    try:
        writer.commit(scenario.step(step))
    except StoreError as fault:
        print(fault)
        break
    step += 1
def known():
    return len(list(folder.rglob("*.arrow"))) == 3 * (writer.last_step or 0) and not list(folder.rglob("*.tmp"))
print(step > 1, known(), audit(folder / "store.db"))
ballast.unlink()
print(writer.commit(scenario.step(step)), writer.commit(scenario.step(step + 1)), known(), audit(folder / "store.db"))
writer.close()
"""


def _run(command: list[str]) -> list[str]:
    done = subprocess.run(command, cwd=ROOT, timeout=120, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_shard_that_does_not_fit_is_refused_with_a_remedy_and_leaves_nothing(tmp_path: Path) -> None:
    said, left, later = _run([sys.executable, "-c", LIMITED, str(tmp_path)])
    remedy = "is full, nothing was stored; free some space there and repeat"
    assert said == f"store: step 1: the disk that holds {tmp_path}/store_trajectories/synthetic {remedy}"
    assert left == "[] []"
    assert later == "True []"


@pytest.mark.skipif(shutil.which("unshare") is None, reason="no unshare on this machine")
def test_a_disk_that_fills_up_stops_the_run_readably_and_it_goes_on_when_there_is_space(tmp_path: Path) -> None:
    mount = ["unshare", "--mount", "sh", "-c", f'mount -t tmpfs -o size=3m none {tmp_path} && exec "$@"', "sh"]
    if subprocess.run([*mount, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("this user may not mount a file system of its own")
    said, full, later = _run([*mount, sys.executable, "-c", SMALL_DISK, str(tmp_path)])
    assert "is full, nothing was stored; free some space there and repeat" in said
    assert full == "True True []"
    assert later == "True True True []"


def test_a_database_that_cannot_grow_is_refused_with_a_remedy_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    writer = open_writer(str(tmp_path / "store.db"))

    def limit_pages(more: int) -> None:
        with writer._engine.connect() as connection:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count = {pages + more}")

    writer.start_run(SCENARIO.run())
    writer.commit(SCENARIO.step(1))
    limit_pages(1)
    step, refusal, before = 2, "", set()
    while not refusal:
        before = {path.name for path in tmp_path.rglob("*.arrow*")}
        try:
            writer.commit(SCENARIO.step(step))
            step += 1
        except StoreError as fault:
            refusal = str(fault)
    assert "is full, nothing was stored; free some space there and repeat" in refusal
    assert {path.name for path in tmp_path.rglob("*.arrow*")} == before
    assert audit(tmp_path / "store.db") == []
    limit_pages(100_000)
    assert writer.commit(SCENARIO.step(step))
    assert writer.commit(SCENARIO.step(step + 1))
    writer.event(EventRecord("info", "there is space again"))
    writer.close()
    assert audit(tmp_path / "store.db") == []
