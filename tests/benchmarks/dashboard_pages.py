"""Time the dashboard over a store as it is after weeks, while its writer goes on.

    python -m tests.benchmarks.dashboard_pages [--folder runs/bench/big_store] [--refreshes 100] [--memory 500]

The store is made first where it is not there (`big_store`: 1,000,000 prompts, 8 members, 20,000 steps). Then, in a
server of its own:

1. server time: every page is drawn 100 times, shared by what it can be asked for, each time after another step was
   committed, and sometimes once more without; wall and CPU milliseconds of the server's process from the beginning of
   the script run to its end, while the writer commits the next step;
2. memory: 500 refreshes while the writer commits a step a second; anonymous memory after a garbage collection;
3. first chart: a browser without a cache opens each page.

Limits: 300 ms of server time at the 95th percentile, 20 MiB, 5 s. Where others load the machine judge by CPU time. The
exit code is 1 when CPU time, memory or the first chart is over its limit. Every step stays: a store that was measured
twenty times is a tenth longer.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import numpy as np
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from dashboard import launch
from dashboard.door import own_names
from server.store.reader import open_reader
from tests.benchmarks.big_run import BigRun, Size
from tests.benchmarks.big_store import Live, make, runs_of, url_of
from tests.benchmarks.run import WORK, machine
from tests.conftest import find_chromium

CONTEXT = multiprocessing.get_context("spawn")
DEADLINE_S = 300.0
LIMIT_MS, LIMIT_MIB, LIMIT_CHART_S = 300.0, 20.0, 5.0
# Refreshes before anything is measured, a page: imports, compiled statements, first rows from the disk.
WARM_UP = 2
# After so many refreshes with a new step there is one without.
AGAIN = 5
CHART = "[data-testid=stVegaLiteChart] canvas, [data-testid=stVegaLiteChart] svg, [data-testid=stEChartsChart] canvas"


@dataclass
class Page:
    """One page as an address opens it, and what it took: milliseconds (wall, CPU) after a commit and without one."""

    name: str
    path: str
    query: str = ""
    cold: list[tuple[float, float]] = field(default_factory=list)
    warm: list[tuple[float, float]] = field(default_factory=list)


def pages(size: Size) -> list[Page]:
    """Every page, in what it can be asked for that costs most."""
    baseline, *_ = others = [run.uid for run in runs_of(size)]
    matrices = [
        ("complementarity", {"graph": "members"}),
        ("compatibility", {"graph": "one member", "over": "true"}),
        ("admitted", {"graph": "one prompt", "over": "true"}),
        ("uptake", {"over": "true"}),
        ("failing", {"over": "true"}),
    ]
    filters = {"show": "all groups", "out": "mixed", "subj": "Algebra"}
    hours = urlencode({"runs": others, "x": "hours", "curve": "reward"}, doseq=True, quote_via=quote)
    return [
        Page("Overview", ""),
        *(
            Page(
                f"Complementarity: {key}{', over time' if 'over' in more else ''}"
                f"{', graph of ' + more['graph'] if 'graph' in more else ''}",
                "complementarity",
                urlencode({"matrix": key, **more}, quote_via=quote),
            )
            for key, more in matrices
        ),
        Page("Transfers", "transfers"),
        Page("Trajectories", "trajectories"),
        Page("Trajectories: groups, filters", "trajectories", urlencode(filters, quote_via=quote)),
        Page("Trajectories: search", "trajectories", "q=Vieta"),
        Page("Training", "training"),
        Page("Evaluation", "evaluation"),
        Page("Evaluation against a baseline", "evaluation", f"against={baseline}"),
        Page("Compare six runs", "compare", urlencode({"runs": others}, doseq=True)),
        Page("Compare six runs, reward by hours", "compare", hours),
        Page("Runs & health", "runs"),
    ]


def write(url: str, size: Size, orders: Connection) -> None:
    """A writer that commits a step whenever it is told to, until it is told to stop."""
    with Live(url, BigRun(size)) as live:
        live.prepare()
        orders.send(live.step)
        while orders.recv():
            orders.send(live.commit())
            live.prepare()


@contextmanager
def writer(url: str, size: Size) -> Iterator[Connection]:
    """The writer's end of the line: send True for a step, receive its number."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=write, args=(url, size, theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(DEADLINE_S), "the writer did not start"
        ours.recv()
        yield ours
    finally:
        ours.send(False)
        process.join(DEADLINE_S)


def committed(orders: Connection) -> None:
    """Until the step that was ordered is there."""
    assert orders.poll(DEADLINE_S), "the writer did not commit"
    orders.recv()


class Server:
    """A dashboard that writes down its times."""

    def __init__(self, url: str, folder: Path) -> None:
        self._notes, self._seen = folder / "notes.jsonl", 0
        self._notes.touch()
        self.port = launch._free_port("127.0.0.1", 0)
        environment = launch._environment(url, own_names("127.0.0.1"), None)
        command = [sys.executable, "-P", "-m", "tests.benchmarks.timed_dashboard", "127.0.0.1", str(self.port)]
        self._log = (folder / "server.log").open("wb")
        self._process = subprocess.Popen(
            [*command, str(self._notes)], env=environment, stdout=self._log, stderr=subprocess.STDOUT
        )
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            assert self._process.poll() is None, (folder / "server.log").read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/_stcore/health", timeout=2):
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"the server did not answer within {DEADLINE_S:g} s")

    def took(self) -> tuple[float, float]:
        """(wall, CPU) milliseconds of the script run that ended last."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            lines = self._notes.read_text().splitlines()
            if len(lines) > self._seen:
                self._seen = len(lines)
                note = json.loads(lines[-1])
                return 1e3 * note["wall"], 1e3 * note["cpu"]
            time.sleep(0.005)
        raise SystemExit("the server noted no time")

    def memory_mib(self) -> float:
        """Anonymous memory after a garbage collection."""
        self._process.send_signal(signal.SIGUSR1)
        time.sleep(2)
        rollup = Path(f"/proc/{self._process.pid}/smaps_rollup").read_text()
        found = re.search(r"^Anonymous: +(\d+) kB", rollup, re.MULTILINE)
        assert found is not None
        return int(found[1]) / 1024

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(DEADLINE_S)
        self._log.close()


class Session:
    """What a browser's tab is to the server: one page of one reader."""

    def __init__(self, server: Server, page: Page) -> None:
        self._server, self._page = server, page
        address = f"ws://127.0.0.1:{server.port}/_stcore/stream"
        self._open = ExitStack()
        self._socket = self._open.enter_context(
            connect(address, subprotocols=[Subprotocol("streamlit")], max_size=None)
        )

    def refresh(self) -> tuple[float, float]:
        """Draw the whole page; what it took. It must have been drawn without a fault."""
        order = BackMsg()
        order.rerun_script.page_name = self._page.path
        order.rerun_script.query_string = self._page.query
        self._socket.send(order.SerializeToString())
        deadline, faults = time.monotonic() + DEADLINE_S, []
        while True:
            said = ForwardMsg()
            data = self._socket.recv(timeout=deadline - time.monotonic())
            assert isinstance(data, bytes)
            said.ParseFromString(data)
            kind = said.WhichOneof("type")
            if kind == "delta" and (said.delta.new_element.HasField("exception") or _is_fault(said)):
                faults.append(str(said.delta.new_element)[:500])
            if kind == "script_finished":
                break
        assert not faults, f"{self._page.name}: {faults[0]}"
        return self._server.took()

    def close(self) -> None:
        self._open.close()


def _is_fault(said: ForwardMsg) -> bool:
    """Whether a panel says that it could not be drawn."""
    return "could not be drawn" in said.delta.new_element.alert.body


def time_pages(server: Server, orders: Connection, wanted: Sequence[Page], refreshes: int) -> None:
    """One page after the other: `refreshes` of each path, each after a commit that went on during the one before."""
    for page in wanted:
        session = Session(server, page)
        views = sum(other.path == page.path for other in wanted)
        for turn in range(WARM_UP + math.ceil(refreshes / views)):
            orders.send(True)
            took = session.refresh()
            if turn >= WARM_UP:
                page.cold.append(took)
                if turn % AGAIN == 0:
                    page.warm.append(session.refresh())
            committed(orders)
        session.close()


def time_memory(server: Server, orders: Connection, wanted: Sequence[Page], refreshes: int) -> tuple[float, float, int]:
    """(MiB at the beginning, MiB of growth, steps committed meanwhile) over refreshes of pages that are all open, two
    a second, with a commit a second."""
    sessions = [Session(server, page) for page in wanted]
    for session in sessions:
        session.refresh()
    before, steps = server.memory_mib(), 0
    due = time.monotonic()
    for number in range(refreshes):
        if number % 2 == 0:
            orders.send(True)
            committed(orders)
            steps += 1
        sessions[number % len(sessions)].refresh()
        due += 0.5
        time.sleep(max(0.0, due - time.monotonic()))
    grown = server.memory_mib() - before
    for session in sessions:
        session.close()
    return before, grown, steps


def first_charts(server: Server, wanted: Sequence[Page], tries: int) -> dict[str, list[float]]:
    """Seconds from the address to the first chart, in a browser that has nothing of ours, one for each try."""
    from playwright.sync_api import sync_playwright

    path, found = find_chromium(), {}
    assert path, "no Chromium on this machine: make browser"
    with sync_playwright() as playwright:
        for page in wanted:
            times = []
            for _ in range(tries):
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
                tab: Any = browser.new_page(viewport={"width": 1400, "height": 900})
                began = time.perf_counter()
                tab.goto(f"http://127.0.0.1:{server.port}/{page.path}?{page.query}", wait_until="commit")
                tab.wait_for_selector(CHART, timeout=1e3 * DEADLINE_S)
                times.append(time.perf_counter() - began)
                browser.close()
                server.took()
            found[page.name] = times
    return found


def table(wanted: Sequence[Page]) -> list[str]:
    """Rows for docs/performance.md."""
    rows = [
        "| page | new step: CPU ms, median / 95th | clock ms, median / 95th | again: CPU ms | 95th of CPU / limit |",
        "|---|---|---|---|---|",
    ]
    for page in wanted:
        (wall, cpu), (most_wall, most_cpu) = np.quantile(np.array(page.cold), [0.5, 0.95], axis=0)
        again = statistics.median(one[1] for one in page.warm)
        rows.append(
            f"| {page.name} | {cpu:.0f} / {most_cpu:.0f} | {wall:.0f} / {most_wall:.0f} | {again:.0f} | "
            f"{most_cpu / LIMIT_MS:.2f} |"
        )
    return rows


def measure(url: str, size: Size, arguments: argparse.Namespace) -> list[str]:
    """Print every figure; what is over its limit."""
    over = []
    wanted = [page for page in pages(size) if arguments.only.lower() in page.name.lower()]
    with tempfile.TemporaryDirectory() as folder, writer(url, size) as orders:
        server = Server(url, Path(folder))
        try:
            time_pages(server, orders, wanted, arguments.refreshes)
            print(*table(wanted), sep="\n", flush=True)
            over += [page.name for page in wanted if np.quantile([cpu for _, cpu in page.cold], 0.95) > LIMIT_MS]
            if arguments.memory:
                before, grown, steps = time_memory(server, orders, wanted, arguments.memory)
                print(
                    f"memory: {grown:+.1f} MiB from {before:.0f} over {arguments.memory} refreshes of {len(wanted)} "
                    f"open pages and {steps} steps ({grown / LIMIT_MIB:.2f} of the limit)",
                    flush=True,
                )
                over += ["memory"] if grown > LIMIT_MIB else []
            if arguments.charts:
                charts = first_charts(server, [page for page in wanted if page.path != "runs"], arguments.charts)
                for name, times in charts.items():
                    took = ", ".join(f"{seconds:.1f}" for seconds in times)
                    print(f"first chart, {name}: {took} s ({max(times) / LIMIT_CHART_S:.2f} of the limit)")
                over += [f"first chart of {name}" for name, times in charts.items() if max(times) > LIMIT_CHART_S]
        finally:
            server.close()
    return over


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=WORK / "big_store", help="where the store lies, or is made")
    parser.add_argument("--steps", type=int, default=Size.steps)
    parser.add_argument("--prompts", type=int, default=Size.prompts)
    parser.add_argument(
        "--refreshes", type=int, default=100, help="of each page, whatever it is asked for, each after a commit"
    )
    parser.add_argument("--memory", type=int, default=500, help="refreshes while a step a second is committed")
    parser.add_argument("--charts", type=int, default=1, help="cold browsers for each page")
    parser.add_argument("--only", default="", help="pages whose name contains this")
    arguments = parser.parse_args()
    size = Size(steps=arguments.steps, prompts=arguments.prompts)
    print(f"machine: {machine()}, streamlit pages in one process", flush=True)
    make(arguments.folder, size)
    with open_reader(url_of(arguments.folder)) as reader:
        sizes = reader.size()
    print(
        f"store: {sizes['prompts']:,} prompts, {sizes['steps']:,} steps of {sizes['runs']} runs, {sizes['groups']:,} "
        f"groups with trajectories, {sizes['database_bytes'] / 2**20:,.0f} MiB",
        flush=True,
    )
    over = measure(url_of(arguments.folder), size, arguments)
    print(f"load at the end: {os.getloadavg()[0]:.1f}")
    for what in over:
        print(f"over its limit: {what}")
    return 1 if over else 0


if __name__ == "__main__":
    sys.exit(main())
