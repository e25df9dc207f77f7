"""graft store verify, prune and info: what is wrong is named, and what is given up leaves everything else true."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from population.cli import app
from server.store import prune as prune_module
from server.store.info import info
from server.store.prune import PrunedRun, prune
from server.store.reader import open_reader
from server.store.records import StoreError
from server.store.verify import verify
from server.store.writer import open_writer
from tests.store.backends import raw, shards_of
from tests.store.synthetic import Scenario, make_store, write_run

SCENARIO = Scenario(steps=8, prompts=6, n=4, nan_loss_at=3, sources=2)


@pytest.fixture
def finished(url: str) -> str:
    """A finished run "synthetic" of 8 steps."""
    with open_writer(url) as writer:
        write_run(writer, SCENARIO, evaluate_every=4)
    return url


def _shards(url: str, pattern: str = "*.arrow") -> list[Path]:
    return sorted((shards_of(url) / "synthetic").glob(pattern))


def _command(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["store", *words], catch_exceptions=False)
    return done.exit_code, done.output


def test_a_sound_store_has_no_faults_and_everything_is_counted(finished: str) -> None:
    found = verify(finished)
    assert (found.faults, found.notes, found.orphans) == ([], [], [])
    assert (found.runs, found.steps, found.groups, found.shards) == (1, 8, 8 * 3 * 6, 24)
    assert (found.responses, found.pruned_steps) == (8 * 3 * 6 * 4, 0)
    assert found.shard_bytes == sum(path.stat().st_size for path in _shards(finished))
    code, said = _command("verify", finished)
    assert (code, said.splitlines()[-1]) == (0, "nothing is wrong")


SPOILT = {
    "is not what its responses are": "UPDATE transfers SET sum_s = sum_s + 1 WHERE step = 4 AND held_out = false",
    "cumulative counts of 3 members": "UPDATE member_counts SET successes = successes + 1 WHERE step = 4",
    "the cumulative counts": "UPDATE pair_counts SET routed = routed + 1 WHERE step = 4",
    "running sum of metric": "UPDATE metrics SET sum_numerator = sum_numerator + 1 WHERE step = 4 AND member = 1",
    "its patterns are not": "UPDATE patterns SET prompts = prompts + 1 WHERE step = 4",
    "who failed and who solved": "UPDATE outcomes SET solved = 0 WHERE step = 4",
    r"ungraded, tokens, cut\), its responses": "UPDATE responses SET reward = 1 - reward",
    "its shards do not hold": "DELETE FROM shards WHERE step = 4 AND member = 1",
    "prompts have no text": "DELETE FROM prompts",
    "belong to no transfer": "DELETE FROM transfers WHERE step = 4",
    "which is not committed": "UPDATE groups SET step = 99 WHERE step = 8",
    "7 steps from 1 to 8": "DELETE FROM steps WHERE step = 4",
    "the evaluation of member": "DELETE FROM evaluation_problems WHERE member = 0",
}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the run of `finished` in a SQLite file, to be copied."""
    folder = tmp_path_factory.mktemp("template")
    with open_writer(str(folder / "store.db")) as writer:
        write_run(writer, SCENARIO, evaluate_every=4)
    return folder


@pytest.mark.parametrize("fault", SPOILT)
def test_rows_that_contradict_each_other_are_named(template: Path, tmp_path: Path, fault: str) -> None:
    shutil.copytree(template, tmp_path, dirs_exist_ok=True)
    url = str(tmp_path / "store.db")
    with raw(url) as database:
        database.execute(SPOILT[fault])
    found = verify(url)
    assert any(re.search(fault, one) for one in found.faults), found.faults


def test_a_fault_is_exit_code_1(finished: str) -> None:
    with raw(finished) as database:
        database.execute("UPDATE member_counts SET successes = successes + 1 WHERE step = 4")
    code, said = _command("verify", finished)
    assert (code, said.splitlines()[-1]) == (1, f"{len(verify(finished).faults)} faults")


def test_shards_that_are_missing_cut_or_changed_are_named(finished: str) -> None:
    missing, cut, changed = _shards(finished)[:3]
    missing.unlink()
    cut.write_bytes(cut.read_bytes()[:-1])
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    changed.write_bytes(content)
    size = cut.stat().st_size
    wanted = {f"{missing.name} is missing", f"{cut.name} has {size} bytes of {size + 1}"}
    assert {fault.rpartition("/")[2] for fault in verify(finished, quick=True).faults} == wanted
    wanted.add(f"{changed.name} is not what was written")
    assert {fault.rpartition("/")[2] for fault in verify(finished).faults} == wanted


def test_files_that_no_row_names_are_orphans_and_no_fault(finished: str) -> None:
    folder = shards_of(finished) / "synthetic"
    orphans = [folder / "step_000009_x_00000000.arrow", folder / "step_000009_x_00000000.arrow.tmp"]
    for path in orphans:
        path.touch()
    (folder / "notes.txt").touch()
    found = verify(finished)
    assert (found.orphans, found.faults) == (orphans, [])
    code, said = _command("verify", finished)
    assert (code, f"orphan: {orphans[0]}" in said) == (0, True)
    assert prune(finished, keep_steps=100).orphans == 2
    assert verify(finished).orphans == []
    assert (folder / "notes.txt").exists()


def test_a_missing_folder_is_one_fault(finished: str) -> None:
    shutil.rmtree(shards_of(finished))
    assert len(verify(finished).faults) == 1
    assert "is not on this machine" in verify(finished).faults[0]
    assert not info(finished).runs[0].folder_found
    with pytest.raises(StoreError, match="no run 'other'"):
        verify(finished, run="other")


def test_pruning_gives_up_what_was_said_and_changes_no_number(finished: str) -> None:
    questions: dict[str, Callable[[], object]] = {}
    with open_reader(finished) as reader:
        questions = {
            "members": lambda: {k: v.tolist() for k, v in reader.member_counts("latest", 1, 8).items()},
            "pairs": lambda: {k: v.tolist() for k, v in reader.pair_counts("latest", 2, 6).items()},
            "loss": lambda: [part.tolist() for part in reader.metric("latest", "loss", 1, 8)],
            "patterns": lambda: reader.patterns("latest", 1, 8),
            "transfers": lambda: reader.transfers("latest", 1, 8, limit=1000),
            "evaluations": lambda: reader.evaluations("latest"),
            "counts": lambda: [reader.group_counts("latest", step) for step in range(1, 9)],
        }
        before = {name: ask() for name, ask in questions.items()}
        size = sum(path.stat().st_size for path in _shards(finished)[: 3 * 5])
        expected = [PrunedRun("synthetic", 5, 5, 15, 5 * 3 * 6 * 4, size)]
        assert prune(finished, keep_steps=3, dry_run=True).runs == expected
        assert len(_shards(finished)) == 24
        assert prune(finished, keep_steps=3).runs == expected
        assert {name: ask() for name, ask in questions.items()} == before
        group = SCENARIO.step(5).groups[0]
        for question in (
            lambda: reader.trajectory("latest", 5, group.prompt, group.member),
            lambda: reader.groups("latest", 5, group.member),
            lambda: reader.check_shards("latest", group.member, {5, 6}),
        ):
            with pytest.raises(StoreError, match=r"step 5 .* pruned"):
                question()
        assert len(reader.groups("latest", 6, SCENARIO.step(6).groups[0].member)) == 6
    assert [path.name[:11] for path in _shards(finished)] == [
        f"step_00000{step}" for step in (6, 7, 8) for _ in range(3)
    ]
    found = verify(finished)
    assert (found.faults, found.pruned_steps, found.shards) == ([], 5, 9)
    assert info(finished).runs[0].pruned_steps == 5
    assert prune(finished, keep_steps=3).runs == []


def test_runs_beyond_the_newest_are_given_up_whole_unless_they_are_written(url: str) -> None:
    for number, status in enumerate(("finished", "running", "finished")):
        make_store(url, steps=2, prompts=2, n=2, uid=f"run-{number}", status=status)
    found = prune(url, keep_runs=1)
    assert [(run.uid, run.until) for run in found.runs] == [("run-0", 2)]
    assert found.notes == ["run-1: is being written, so it is not given up"]
    assert [run.pruned_steps for run in info(url).runs] == [0, 0, 2]
    assert verify(url).faults == []


@pytest.mark.parametrize("moment", ["the rows are gone", "half of the files are gone"])
def test_pruning_that_is_interrupted_leaves_orphans_at_most(
    finished: str, moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(root: Path, paths: list[str]) -> None:
        for path in paths[: len(paths) // 2] if moment == "half of the files are gone" else ():
            (root / path).unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(prune_module, "remove_shards", interrupted)
        with pytest.raises(KeyboardInterrupt):
            prune(finished, keep_steps=1)
    found = verify(finished)
    assert found.faults == []
    assert found.orphans
    assert prune(finished, keep_steps=1).orphans == len(found.orphans)
    assert (verify(finished).faults, verify(finished).orphans, len(_shards(finished))) == ([], [], 3)


def test_a_resume_between_rows_and_files_keeps_its_files(finished: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run goes on from step 0 and writes files of the very names that were being pruned."""
    writer, delete = open_writer(finished), prune_module._delete_files

    def resumed(*arguments) -> None:
        monkeypatch.setattr(prune_module, "_delete_files", delete)
        writer.resume_run("synthetic", 0)
        for step in range(1, 7):
            writer.commit(SCENARIO.step(step))
        delete(*arguments)

    monkeypatch.setattr(prune_module, "_delete_files", resumed)
    prune(finished, keep_steps=4)
    assert verify(finished).faults == []
    assert {path.name[:11] for path in _shards(finished)} >= {"step_000005", "step_000006"}
    writer.close()


def test_a_run_that_is_written_can_be_pruned_and_verified(url: str) -> None:
    with open_writer(url) as writer:
        writer.start_run(SCENARIO.run())
        for step in range(1, 9):
            writer.commit(SCENARIO.step(step))
            prune(url, keep_steps=2)
            assert verify(url).faults == []
        (state,) = info(url).runs
        assert (state.alive, state.status, state.shards, state.pruned_steps) == (True, "running", 6, 6)
    with open_writer(url) as writer:
        writer.resume_run("synthetic", 7)
        assert writer.commit(SCENARIO.step(8))
    assert verify(url).faults == []


def test_a_run_resumed_while_it_is_verified_is_no_fault(finished: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from server.store import verify as verify_module

    monkeypatch.setattr(verify_module, "CHUNK_STEPS", 3)
    look, writer = verify_module._still_named, open_writer(finished)
    _shards(finished)[0].unlink()

    def resumed(*arguments: object) -> bool:
        if writer._held is None:
            writer.resume_run("synthetic", 0)
        return look(*arguments)

    monkeypatch.setattr(verify_module, "_still_named", resumed)
    found = verify(finished)
    assert (found.faults, found.notes) == (
        [],
        ["synthetic: was resumed from an earlier step meanwhile; verify it again"],
    )
    writer.close()


def test_info_tells_sizes_runs_and_lag(finished: str) -> None:
    found = info(finished)
    (run,) = found.runs
    assert (run.uid, run.status, run.alive, run.last_step, run.total_steps) == ("synthetic", "finished", False, 8, 8)
    assert (run.groups, run.shards) == (144, 24)
    assert run.behind_s is not None
    assert found.rows["groups"] == 144
    assert found.rows["responses"] == 576
    assert found.database.startswith(("SQLite 3", "PostgreSQL "))
    assert (found.wal_bytes is None) == finished.startswith("postgresql")
    code, said = _command("info", finished, "--json")
    assert (code, json.loads(said)["schema"]) == (0, found.schema)
    code, said = _command("info", finished)
    assert (code, "synthetic" in said) == (0, True)


def test_commands_say_what_they_need_in_one_line(finished: str) -> None:
    done = CliRunner().invoke(app, ["store", "prune", finished])
    assert done.exit_code == 2
    assert done.stderr.startswith("error: store: say what to keep: --keep-steps N")
    code, said = _command("prune", finished, "--keep-steps", "6", "--dry-run")
    assert (code, "would give up what was said in 2 steps" in said) == (0, True)
    code, said = _command("prune", finished, "--keep-steps", "6", "--json")
    assert (code, json.loads(said)["runs"][0]["shards"]) == (0, 6)
