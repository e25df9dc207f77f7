"""Warm starts of several members at once, each in a process of its own with one thread."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from population.demo.warmstart import WarmStartError, find, prepare

MemberProgress = Callable[[str, int, int, float], None]
"""Called in the parent as progress(member, step, total steps, loss)."""

REPORT_EVERY = 10


@dataclass(slots=True)
class _Job:
    member: str
    process: SpawnProcess
    reports: Connection


def prepare_all(
    members: Iterable[str],
    *,
    seed: int,
    cache_dir: str | Path,
    workers: int | None = None,
    deadline_s: float = 900.0,
    progress: MemberProgress | None = None,
    **options: Any,
) -> dict[str, Path]:
    """Member -> its warm-started folder, `workers` at a time (default: all, but at most one more than there are cores).

    No process is started for what the cache has. `options` go to `prepare`. ValueError for an unknown member;
    WarmStartError names the member that failed, died, or was not ready after `deadline_s` seconds, when the other
    processes have been ended.
    """
    names = list(dict.fromkeys(members))
    arguments = {"seed": seed, "cache_dir": str(cache_dir), **options}
    cached = {name: find(name, **arguments) for name in names}
    done = {name: folder for name, folder in cached.items() if folder is not None}
    waiting = [name for name in names if name not in done]
    slots = workers or min(len(waiting), (os.cpu_count() or 1) + 1)
    end = time.monotonic() + deadline_s
    running: list[_Job] = []
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                running.append(_start(waiting.pop(0), arguments))
            left = end - time.monotonic()
            ready = wait([job.reports for job in running], timeout=left) if left > 0 else []
            if not ready:
                late = ", ".join([job.member for job in running] + waiting)
                raise WarmStartError(f"warm start of {late} not ready after {deadline_s:.0f} s; it can be run again")
            for job in [job for job in running if job.reports in ready]:
                folder = _receive(job, progress)
                if folder is not None:
                    done[job.member] = folder
                    running.remove(job)
    finally:
        for job in running:
            _end(job)
    return {name: done[name] for name in names}


def _start(member: str, arguments: dict[str, Any]) -> _Job:
    context = multiprocessing.get_context("spawn")
    reports, sender = context.Pipe(duplex=False)
    process = context.Process(
        target=_work, args=(member, arguments, sender), name=f"warm start of {member}", daemon=True
    )
    process.start()
    sender.close()  # ours, so that the end of the process closes the pipe
    return _Job(member, process, reports)


def _receive(job: _Job, progress: MemberProgress | None) -> Path | None:
    """Takes one report of a job; its folder when that was the last one."""
    try:
        kind, content = job.reports.recv()
    except EOFError:
        job.process.join(5)
        raise WarmStartError(
            f"warm start of {job.member}: its process ended with exit code {job.process.exitcode}"
        ) from None
    if kind == "progress":
        if progress is not None:
            progress(job.member, *content)
        return None
    if kind == "failed":
        raise WarmStartError(f"warm start of {job.member} failed: {content}")
    _end(job)
    return Path(content)


def _end(job: _Job) -> None:
    job.reports.close()
    job.process.join(0 if job.process.exitcode is None else 5)
    if job.process.is_alive():
        job.process.kill()
    job.process.join(5)


def _work(member: str, arguments: dict[str, Any], reports: Connection) -> None:
    """The body of a process. A parent that has gone away breaks the pipe, which ends the process at its next report."""

    def report(step: int, total: int, loss: float) -> None:
        if step % REPORT_EVERY == 0 or step == total:
            reports.send(("progress", (step, total, loss)))

    try:
        folder = prepare(member, progress=report, **arguments)
    except BrokenPipeError:
        return
    except Exception as error:
        reports.send(("failed", f"{error!r}\n{traceback.format_exc()}"))
        return
    reports.send(("done", str(folder)))
