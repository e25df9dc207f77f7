"""Which runs are compared: selectors, and the arms they make.

A selector is a sweep's folder, a comparison saved as JSON, a store, ``STORE:GLOB``, or a glob over uids and names in
the default store; ``ARM=selector`` names the arm. Runs without a name for their arm are grouped by configuration, seed
and places left out, and the arms are named by what differs between them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from population.compare.saved import load_saved
from population.errors import RunError
from population.sweep.manifest import MANIFEST, Manifest, read_manifest
from server.store.arms import arm_names
from server.store.comparison import Arm
from server.store.connections import without_password
from server.store.reader import RunInfo, open_reader
from server.store.results import RunResult, read_result


class CompareError(RunError, ValueError):
    """A comparison that cannot be made as asked; names the selector and the remedy."""


@dataclass
class Selection:
    """Arms in the order in which they were found, what a sweep says about them, and what was left out."""

    arms: dict[str, dict[int, RunResult]] = field(default_factory=dict)
    descriptions: dict[str, str] = field(default_factory=dict)
    baselines: tuple[str, ...] = ()
    cost: str | None = None
    notes: list[str] = field(default_factory=list)

    def add(self, arm: str, run: RunResult) -> None:
        """One more run of an arm. Raises CompareError when the arm has another run of its seed."""
        runs = self.arms.setdefault(arm, {})
        other = runs.setdefault(run.seed, run)
        if (other.uid, other.store) != (run.uid, run.store):
            raise CompareError(
                f"arm {arm!r} has two runs of seed {run.seed}: {other.uid} and {run.uid}; "
                "select one by its uid, or give them arms of their own (ARM=SELECTOR)"
            )

    def adopt(self, baselines: Sequence[str], cost: str | None) -> None:
        """What a sweep or a saved comparison was compared by holds unless an earlier selector said otherwise."""
        self.baselines = self.baselines or tuple(baselines)
        self.cost = self.cost or cost

    def finish(self) -> tuple[Arm, ...]:
        """The arms, runs by seed."""
        return tuple(
            Arm(name, dict(sorted(runs.items())), self.descriptions.get(name, "")) for name, runs in self.arms.items()
        )


@dataclass(frozen=True)
class Found:
    """A run that a selector without an arm's name matched."""

    info: RunInfo
    result: RunResult


def select(selectors: Sequence[str], store: str, *, unfinished: bool = False) -> Selection:
    """The arms that selectors make; ``store`` is where globs look. Runs that did not finish are left out and named,
    unless ``unfinished``. Raises CompareError, StoreError.
    """
    selection, loose = Selection(), []
    for text in selectors:
        arm, selector = _arm_and_selector(text)
        path = Path(selector)
        if (path / MANIFEST).is_file():
            _add_sweep(selection, read_manifest(path), path, arm, unfinished)
        elif path.suffix == ".json" and path.is_file():
            saved = load_saved(path)
            selection.adopt(saved.baselines, saved.cost)
            selection.notes += [note for note in saved.notes if note not in selection.notes]
            for known in saved.arms:
                selection.descriptions.setdefault(arm or known.name, known.description)
                for run in known.runs.values():
                    selection.add(arm or known.name, run)
        elif path.is_dir():
            raise CompareError(f"{selector}: is a folder without {MANIFEST}; give a sweep's folder, or a store's file")
        else:
            found = _matching(*_store_and_glob(selector, store), text, selection, unfinished)
            if arm is None:
                loose += found
            for one in found if arm else ():
                selection.add(str(arm), one.result)
    for name, one in zip(arm_names([one.info for one in loose]), loose, strict=True):
        selection.add(name, one.result)
    if not any(selection.arms.values()):
        left = "; ".join(selection.notes)
        raise CompareError(f"there is no finished run to compare{': ' + left if left else ''}")
    return selection


def _arm_and_selector(text: str) -> tuple[str | None, str]:
    arm, separator, selector = text.partition("=")
    if not separator or any(mark in arm for mark in "/:*?["):
        return None, text
    if not arm or not selector:
        raise CompareError(f"{text}: expected ARM=SELECTOR, for instance graft=runs/graft.db:graft-*")
    return arm, selector


def _store_and_glob(selector: str, store: str) -> tuple[str, str]:
    """A selector is a store, STORE:GLOB, or a glob in the default store."""
    head, separator, tail = selector.rpartition(":")
    if separator and "/" not in tail:  # else it is a URL's port, password or scheme
        return head, tail
    if "://" in selector or Path(selector).is_file():
        return selector, "*"
    if "/" in selector or selector.endswith((".json", ".db")):  # no uid and no name has a slash
        raise CompareError(f"{selector}: there is no such folder or file; check the path")
    return store, selector


def _matching(store: str, pattern: str, text: str, selection: Selection, unfinished: bool) -> list[Found]:
    """The runs of a store whose uid or name matches, oldest first."""
    with open_reader(store) as reader:
        runs = list(reversed(reader.runs()))
        matched = [
            run
            for run in runs
            if fnmatchcase(run.uid, pattern)
            or fnmatchcase(run.name, pattern)
            or (pattern == "latest" and run is runs[-1])
        ]
        if not matched:
            known = ", ".join(run.uid for run in runs[-5:]) or "it holds none"
            raise CompareError(
                f"{text}: no run in {without_password(store)} has such a uid or name; the newest: {known}"
            )
        kept = [run for run in matched if unfinished or run.status == "finished"]
        selection.notes += [_left_out(run) for run in matched if run not in kept]
        return [Found(run, read_result(reader, run, store)) for run in kept]


def _left_out(run: RunInfo) -> str:
    return f"left out: {run.uid} is {run.status} at step {run.last_step or 0} of {run.total_steps}"


def _add_sweep(selection: Selection, sweep: Manifest, folder: Path, arm: str | None, unfinished: bool) -> None:
    """Every arm of a sweep's folder; runs that are not there are named."""
    absent = []
    selection.adopt(sweep.baselines, sweep.cost)
    for planned in sweep.arms:
        selection.descriptions.setdefault(arm or planned.name, planned.description)
        for run in planned.runs:
            store = str(folder / run.store)
            if not (folder / run.store).is_file():
                absent.append(run.uid)
                continue
            with open_reader(store) as reader:
                info = next((one for one in reader.runs() if one.uid == run.uid), None)
                if info is None:
                    absent.append(run.uid)
                elif unfinished or info.status == "finished":
                    selection.add(arm or planned.name, read_result(reader, info, store))
                else:
                    selection.notes.append(_left_out(info))
    if absent:
        more = f" and {len(absent) - 6} more" if len(absent) > 6 else ""
        selection.notes.append(f"not run: {', '.join(absent[:6])}{more}")
