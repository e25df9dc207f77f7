"""As much of the hub as its own libraries ask for: a folder of data sets served on loopback, owner/name/files."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs

COMMIT = "1" * 40


def handler_for(root: Path) -> type[BaseHTTPRequestHandler]:
    """A request handler for the data sets below a folder."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self.answer()

        def do_GET(self) -> None:
            self.answer()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            repository = root / "/".join(self.path.split("/")[3:5])
            paths = json.loads(body)["paths"] if body.startswith("{") else parse_qs(body).get("paths", [])
            found = [entry(repository, repository / path) for path in paths if (repository / path).exists()]
            self.reply(200, json.dumps(found).encode())

        def answer(self) -> None:
            parts = self.path.split("?")[0].split("/")
            repository = root / "/".join(parts[3:5] if parts[1] == "api" else parts[2:4])
            if not repository.is_dir():
                self.reply(404, b"{}", **{"X-Error-Code": "RepoNotFound"})
            elif "tree" in parts:
                paths = sorted((repository / "/".join(parts[parts.index("tree") + 2 :])).rglob("*"))
                self.reply(200, json.dumps([entry(repository, path) for path in paths]).encode())
            elif "resolve" in parts:
                self.file(repository / "/".join(parts[parts.index("resolve") + 2 :]))
            else:
                files = [{"rfilename": p.relative_to(repository).as_posix()} for p in repository.rglob("*.*")]
                self.reply(200, json.dumps({"id": repository.name, "sha": COMMIT, "siblings": files}).encode())

        def file(self, path: Path) -> None:
            if not path.is_file():
                self.reply(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
                return
            content = path.read_bytes()
            self.reply(200, content, ETag=f'"{digest(content)}"', **{"X-Repo-Commit": COMMIT})

        def reply(self, status: int, content: bytes, **headers: str) -> None:
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def log_message(self, *_arguments: object) -> None:
            pass

    return Handler


def entry(repository: Path, path: Path) -> dict[str, str | int]:
    """A file or folder as the hub lists it."""
    name = path.relative_to(repository).as_posix()
    if path.is_dir():
        return {"type": "directory", "path": name, "oid": "0" * 40}
    return {"type": "file", "path": name, "size": path.stat().st_size, "oid": digest(path.read_bytes())}


def digest(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


@contextmanager
def serve(handler: type[BaseHTTPRequestHandler]) -> Iterator[str]:
    """A server on loopback; gives its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
