"""Starting and stopping the server process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from dashboard import launch
from dashboard.door import own_names
from server.store.reader import open_reader
from server.store.writer import open_writer
from tests.dashboard.showcase import Showcase, write

ROOT = Path(__file__).resolve().parents[2]
SECRET = "postgresql://user:hunter2@db/graft"


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def wait_until(condition, seconds: float = 60.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_a_port_in_use_is_one_line_with_the_remedy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(launch.DashboardError) as caught:
            launch.serve("sqlite:///x.db", port=port)
    message = str(caught.value)
    assert "\n" not in message
    assert f"port {port} on 127.0.0.1 is in use" in message
    assert "--port 0" in message


@pytest.mark.parametrize("port", [70_000, -1])
def test_a_port_that_does_not_exist_is_refused(port: int) -> None:
    with pytest.raises(launch.DashboardError, match="65535"):
        launch.serve("sqlite:///x.db", port=port)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.0.2.7", "::", "gpu-box"])
def test_other_machines_are_kept_out_unless_asked_for(host: str) -> None:
    with pytest.raises(launch.DashboardError, match="no login"):
        launch.serve("sqlite:///x.db", host=host, port=0)


def test_an_address_of_another_machine_is_one_line() -> None:
    with pytest.raises(launch.DashboardError, match="cannot be opened"):
        launch.serve("sqlite:///x.db", host="192.0.2.7", port=0, insecure=True)


def test_flags_keep_the_server_private_and_carry_the_theme() -> None:
    flags = launch.server_flags("127.0.0.1", 8501, own_names("127.0.0.1"))
    assert {
        "--server.address=127.0.0.1",
        "--browser.gatherUsageStats=false",
        "--server.fileWatcherType=none",
        "--server.allowedHosts=localhost",
        "--server.allowedHosts=127.0.0.1",
        "--server.enableXsrfProtection=true",
        "--server.enableCORS=true",
        "--client.showErrorLinks=false",
        "--theme.dark.backgroundColor=#0F141B",
        "--theme.light.sidebar.backgroundColor=#F6F8FB",
    } <= set(flags)
    assert not [flag for flag in flags if "secrets" in flag]
    assert "--secrets.files=/x.toml" in launch.server_flags("127.0.0.1", 1, ["localhost"], "/x.toml")


def test_the_package_ships_what_the_server_needs() -> None:
    for name in ("theme.toml", "icon.png", "dashboard.css", "entry/streamlit_app.py", "entry/dashboard_server.py"):
        assert (ROOT / "dashboard" / name).is_file()
    # Streamlit would serve a folder `pages` beside its script on its own.
    assert not (launch.ENTRY.parent / "pages").exists()


def test_the_server_answers_hides_the_store_and_ends_on_close() -> None:
    with launch.serve(SECRET, port=0) as server:
        pid = server.process.pid
        with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=60) as answer:
            assert answer.status == 200
        assert "hunter2" not in Path(f"/proc/{pid}/cmdline").read_text()
    assert server.process.returncode is not None
    assert not alive(pid)
    server.close()


def test_a_dashboard_that_is_killed_leaves_the_run_alone(tmp_path: Path) -> None:
    scenario, url = Showcase(steps=9, prompts=4), f"sqlite:///{tmp_path / 'store.db'}"
    with open_writer(url) as writer:
        write(writer, scenario, 2, 0)
        with launch.serve(url, port=0) as server:
            with urllib.request.urlopen(f"{server.url}/_stcore/health", timeout=60):
                writer.commit(scenario.step(3))
            server.process.kill()
            server.process.wait()
        writer.commit(scenario.step(4))
        writer.finish("finished")
    with open_reader(url) as store:
        assert (store.run("latest").last_step, store.run("latest").status) == (4, "finished")


PARENT = """
import sys
from dashboard.launch import serve
server = serve("sqlite:///none.db", port=0)
print(server.process.pid, flush=True)
sys.stdin.read()
"""


def test_the_server_ends_with_a_parent_that_was_killed() -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert alive(pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdin.close()
    parent.stdout.close()
    assert wait_until(lambda: not alive(pid))


def test_the_dashboard_imports_without_torch() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = sys.modules['deepspeed'] = None; "
        "import dashboard.app, dashboard.launch"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, timeout=120)
