"""Start the dashboard's server as a process of its own, wait until it answers, and stop it.

The store's address travels in the environment, never on a command line, where `ps` would show a password. The server
ends with the process that started it, even when that one is killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import urllib.request
import webbrowser
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from dashboard.door import is_loopback, own_names
from dashboard.login import Login, LoginError, check

STORE_VARIABLE = "GRAFT_STORE_URL"
NAMES_VARIABLE = "GRAFT_DASHBOARD_NAMES"
# The checked secrets file of a server with login; not set for one without.
SECRETS_VARIABLE = "GRAFT_DASHBOARD_SECRETS"
_PARENT_VARIABLE = "GRAFT_DASHBOARD_PARENT"
_HERE = Path(__file__).resolve().parent
ENTRY = _HERE / "entry" / "dashboard_server.py"
_READY_S = 90.0
_STOP_S = 5.0


class DashboardError(Exception):
    """The dashboard could not be started: one line with the reason and the remedy."""


class Dashboard:
    """A running dashboard server. Close it, or leave its `with` block, to stop the server."""

    def __init__(self, process: subprocess.Popen[bytes], url: str, log: IO[bytes]) -> None:
        self.process = process
        self.url = url
        self._log = log

    def wait(self) -> int:
        """Wait until the server ends; its exit code."""
        return self.process.wait()

    def close(self) -> None:
        """Stop the server; harmless when it has ended already."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._log.close()

    def __enter__(self) -> Dashboard:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def serve(
    store_url: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8501,
    open_browser: bool = False,
    insecure: bool = False,
    secrets: Path | None = None,
    names: Sequence[str] = (),
    ready_s: float = _READY_S,
) -> Dashboard:
    """Start the dashboard over a store and return once it answers; `port` 0 takes any free one.

    The store need not exist yet: the pages wait for it. `secrets` is the file of a login (see `dashboard.login`);
    `names` are host names, besides its own, under which browsers reach the server. DashboardError when the port is
    taken, the server does not come up within `ready_s` seconds, the login is not set up, or `host` is not this
    machine's loopback and there is neither a login nor `insecure`.
    """
    if secrets is None and not insecure and not is_loopback(host):
        raise DashboardError(
            f"the dashboard has no login by itself, so it does not listen on {host}; "
            "use 127.0.0.1 with an SSH tunnel, --auth oidc, or --insecure"
        )
    login = None if secrets is None else _checked_login(secrets, insecure)
    known = own_names(host, [*names, *([login.host] if login else [])])
    port = _free_port(host, port)
    address = f"[{host}]" if ":" in host else host
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
    process = subprocess.Popen(
        # -P: a folder of the same name in the working directory is not taken for this package.
        [sys.executable, "-P", "-m", "dashboard.launch", host, str(port)],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        env=_environment(store_url, known, login),
        # Ctrl-C reaches this process alone; it decides when the server goes.
        start_new_session=True,
    )
    server = Dashboard(process, f"http://{address}:{port}", log)
    try:
        _await_health(server, log, ready_s)
    except BaseException:
        server.close()
        raise
    if open_browser:
        webbrowser.open(server.url)
    return server


def _checked_login(secrets: Path, insecure: bool) -> Login:
    try:
        return check(secrets, insecure=insecure)
    except LoginError as error:
        raise DashboardError(str(error)) from None


def server_flags(host: str, port: int, names: Sequence[str], secrets: str | None = None) -> list[str]:
    """Streamlit's settings as command-line flags, which no configuration file of the user overrides."""
    settings: dict[str, object] = {
        "server.address": host,
        "server.port": port,
        "server.headless": True,
        "server.showEmailPrompt": False,
        "server.fileWatcherType": "none",
        "server.enableAgentApi": False,
        # Both: the one keeps other pages from sending files, the other from opening a connection.
        "server.enableXsrfProtection": True,
        "server.enableCORS": True,
        "server.maxCacheDataSize": "256MB",
        "browser.gatherUsageStats": False,
        "client.toolbarMode": "viewer",
        "client.showErrorDetails": "type",
        "client.showErrorLinks": False,
        **_flatten(tomllib.loads((_HERE / "theme.toml").read_text("utf-8"))),
    }
    flags = [f"--{key}={_flag_value(value)}" for key, value in settings.items()]
    flags += [f"--server.allowedHosts={name}" for name in names]
    return flags if secrets is None else [*flags, f"--secrets.files={secrets}"]


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _flag_value(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _environment(store_url: str, names: Sequence[str], login: Login | None) -> dict[str, str]:
    inherited = os.environ.get("PYTHONPATH")
    return {
        **{
            key: value
            for key, value in os.environ.items()
            if not key.startswith("STREAMLIT_") and key != SECRETS_VARIABLE
        },
        STORE_VARIABLE: store_url,
        NAMES_VARIABLE: ",".join(names),
        **({SECRETS_VARIABLE: str(login.secrets.absolute())} if login else {}),
        _PARENT_VARIABLE: str(os.getpid()),
        "PYTHONPATH": os.pathsep.join([str(_HERE.parent), *([inherited] if inherited else [])]),
    }


def _free_port(host: str, port: int) -> int:
    """The port itself when nothing listens there, any free one for 0."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError:
            raise DashboardError(f"port {port} does not exist; choose --port from 0 (any free one) to 65535") from None
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                reason, remedy = "is in use", "choose another with --port N, or --port 0 for any free one"
            elif error.errno == errno.EACCES:
                reason, remedy = "needs privileges", "choose --port 1024 or higher, or --port 0 for any free one"
            else:
                reason, remedy = f"cannot be opened ({error.strerror or error})", "check --host"
            raise DashboardError(f"port {port} on {host} {reason}; {remedy}") from None
        return int(probe.getsockname()[1])


def _await_health(server: Dashboard, log: IO[bytes], ready_s: float) -> None:
    # Whatever proxy the environment names, the server is on this machine.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    deadline = time.monotonic() + ready_s
    while time.monotonic() < deadline:
        code = server.process.poll()
        if code is not None:
            raise DashboardError(f"the dashboard server ended with code {code} while starting: {_last_line(log)}")
        with contextlib.suppress(OSError), opener.open(f"{server.url}/_stcore/health", timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise DashboardError(
        f"the dashboard did not answer at {server.url} within {ready_s:.0f} s; its last output: {_last_line(log)}"
    )


def _last_line(log: IO[bytes]) -> str:
    log.seek(0)
    lines = [line.strip() for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    return lines[-1] if lines else "(no output)"


def end_with_parent(parent: int) -> None:
    """End this process when the one that started it is gone, however it went.

    Asked each half second: the kernel's own death signal watches the starting thread, not the process.
    """
    me = os.getpid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os.kill(me, signal.SIGTERM)
        time.sleep(2 * _STOP_S)
        os.kill(me, signal.SIGKILL)

    threading.Thread(target=watch, name="parent watch", daemon=True).start()


def main(arguments: list[str]) -> None:
    """The server process: `python -m dashboard.launch HOST PORT`, with the store and the parent in the environment."""
    host, port = arguments
    end_with_parent(int(os.environ[_PARENT_VARIABLE]))
    from streamlit.web import cli

    names, secrets = os.environ[NAMES_VARIABLE].split(","), os.environ.get(SECRETS_VARIABLE)
    sys.argv = ["streamlit", "run", str(ENTRY), *server_flags(host, int(port), names, secrets)]
    cli.main(prog_name="streamlit")


if __name__ == "__main__":
    main(sys.argv[1:])
