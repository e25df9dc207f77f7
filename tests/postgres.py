"""A PostgreSQL server of the test session's own, from installed binaries, in a folder that goes away with it."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import psycopg

REASON = "no PostgreSQL on this machine: apt-get install postgresql"
DEADLINE_S = 120
_DEATH_SIGNAL = 1
# What a test never needs: to survive a power cut.
SETTINGS = {
    "listen_addresses": "",
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "autovacuum": "off",
}


def find_binaries() -> Path | None:
    """The folder that holds initdb and postgres, in PATH or where Debian keeps them; None without."""
    debian = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: -int(path.parent.name))
    found = shutil.which("initdb")
    known = [Path(os.path.realpath(found)).parent] if found else []
    return next(
        (one for one in (*known, *debian) if all((one / name).exists() for name in ("initdb", "postgres"))), None
    )


@dataclass
class Server:
    """A running server; databases are made by name, with everything trusted that reaches its socket."""

    folder: Path
    made: int = 0

    @property
    def log(self) -> Path:
        """What the server says."""
        return self.folder / "log"

    def url(self, database: str, user: str = "postgres", **options: object) -> str:
        query = "&".join(f"{key}={quote(str(value), safe='')}" for key, value in options.items())
        return f"postgresql+psycopg://{user}@/{database}?host={quote(str(self.folder), safe='')}" + f"&{query}" * bool(
            query
        )

    def connect(self, database: str = "postgres", user: str = "postgres") -> psycopg.Connection:
        """A plain connection that commits every statement."""
        return psycopg.connect(host=str(self.folder), dbname=database, user=user, autocommit=True)

    def new_database(self) -> str:
        """An empty database; its name."""
        self.made += 1
        name = f"test_{self.made}"
        with self.connect() as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return name

    def drop(self, database: str) -> None:
        """Remove a database, whoever is connected to it."""
        with self.connect() as connection:
            connection.execute(f"DROP DATABASE IF EXISTS {database} WITH (FORCE)")


@contextmanager
def running_server(settings: Mapping[str, str] = SETTINGS) -> Iterator[Server]:
    """Start a server with these settings and stop it afterwards; it ends with this process in any case.

    PostgreSQL refuses to run as root, which starts it as postgres or nobody.
    """
    binaries = find_binaries()
    assert binaries, REASON
    folder = Path(tempfile.mkdtemp(prefix="graft-pg-"))
    account: dict[str, object] = {}
    if os.geteuid() == 0:
        account = dict(zip(("user", "group"), _account(), strict=True)) | {"extra_groups": []}
        os.chown(folder, account["user"], account["group"])  # type: ignore[arg-type]
    found = Server(folder)
    try:
        data = folder / "data"
        made = subprocess.run(
            [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N"],
            cwd=folder, capture_output=True, text=True, timeout=DEADLINE_S, check=False, **account,
        )  # fmt: skip
        assert made.returncode == 0, made.stderr
        options = [f"--{name}={value}" for name, value in settings.items()]
        command = [binaries / "postgres", "-D", data, "-k", folder, *options]
        with open(found.log, "wb") as output:
            server = subprocess.Popen(
                command, cwd=folder, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
                preexec_fn=_end_with_parent, **account,
            )  # fmt: skip
        try:
            _await(found, server)
            yield found
        finally:
            server.send_signal(signal.SIGQUIT)
            server.wait(DEADLINE_S)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _account() -> tuple[int, int]:
    import pwd

    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return entry.pw_uid, entry.pw_gid
    raise AssertionError("PostgreSQL does not run as root, and there is no user postgres or nobody")


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGQUIT)


def _await(server: Server, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while True:
        try:
            server.connect().close()
            return
        except psycopg.OperationalError:
            assert process.poll() is None, server.log.read_text()
            assert time.monotonic() < deadline, server.log.read_text()
            time.sleep(0.05)
