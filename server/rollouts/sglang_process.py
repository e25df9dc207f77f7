"""One SGLang server as a process of its own: start, readiness, keys, crash, restart, and an end that leaves nothing.

The run talks to a guard (sglang_guard.py), the guard to the server. SGLang itself is not imported: the server runs with
an interpreter that has it, which need not be the run's own. Flags and answers are those of SGLang 0.5.23.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import httpx

from server.rollouts.engine import EngineError

Flag = bool | int | float | str | tuple[int | float | str, ...]

GUARD = Path(__file__).with_name("sglang_guard.py")
TICK_S = 0.1
PROBE_S = 5.0
LOG_BYTES = 16 << 20
TAIL_BYTES = 64 << 10
TAIL_LINES = 4
TAIL_TEXT = 300
PORT_TRIES = 3
# After its grace period the guard kills, which may take as long as a driver's call.
GUARD_GRACE_S = 40.0
# SGLang keeps a token or two of the context for itself, and a prompt of full length still wants its whole response.
SPARE_CONTEXT = 8
# Without a GPU: kernels of torch alone, and no core kept busy by a server that waits.
CPU_FLAGS: Mapping[str, Flag] = {
    "attention-backend": "torch_native",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "disable-overlap-schedule": True,
    "sleep-on-idle": True,
    "mem-fraction-static": 0.3,
    "max-total-tokens": 20000,
}
# What a process of ours has in its environment for itself: import paths, and a trainer's rank and meeting point.
NOT_INHERITED = (
    "PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT",
)  # fmt: skip
# The last line of a traceback, or a complaint about the command line.
FAULT = re.compile(
    r"(?:\[[^\]]*\] )?((?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception|Exit|Interrupt)\b.*|.*: error: .*)"
)
TAKEN = re.compile(r"address already in use|port is already in use|EADDRINUSE", re.IGNORECASE)


class ServerError(EngineError):
    """A server that did not start, or is gone; the message has the reason and the place of its log."""


@dataclass(frozen=True)
class ServerSpec:
    """How one server is started. `name` stands in messages; `folder` (the server's own) gets a log for each start.

    context_length: tokens of prompt and response together. gpus: CUDA_VISIBLE_DEVICES, empty: what the run sees.
    memory_fraction: share of a GPU's memory, None: SGLang's choice. memory_saver: sleep and wake will be asked for.
    """

    name: str
    folder: Path
    context_length: int
    python: str = sys.executable
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: str = "float32"
    host: str = "127.0.0.1"
    port: int | None = None
    tensor_parallel: int = 1
    data_parallel: int = 1
    memory_fraction: float | None = None
    gpus: tuple[str, ...] = ()
    memory_saver: bool = False
    threads: int = 1
    flags: Mapping[str, Flag] = field(default_factory=dict)
    start_s: float = 600.0
    grace_s: float = 10.0


def launch_command(spec: ServerSpec, model: Path, version: str, port: int, keys: Path) -> list[str]:
    """The command line of one server. The keys are in a file that it reads, where `ps` does not show them."""
    flags: dict[str, Flag] = dict(CPU_FLAGS) if spec.device == "cpu" else {"log-level-http": "warning"}
    flags |= spec.flags
    flags |= {
        "model-path": str(model),
        "weight-version": version,
        "host": spec.host,
        "port": port,
        "device": spec.device,
        "dtype": spec.dtype,
        "context-length": spec.context_length + SPARE_CONTEXT,
        "tensor-parallel-size": spec.tensor_parallel,
        "data-parallel-size": spec.data_parallel,
        "skip-tokenizer-init": True,
    }
    if spec.memory_fraction is not None:
        flags["mem-fraction-static"] = spec.memory_fraction
    if spec.memory_saver and spec.device == "cuda":
        flags["enable-memory-saver"] = True
    command = [spec.python, "-m", "sglang.launch_server", "--config", str(keys)]
    for name, value in flags.items():
        if isinstance(value, bool):
            command += [f"--{name}"] if value else []
        else:
            values = value if isinstance(value, tuple) else (value,)
            command += [f"--{name}", *(str(each) for each in values)]
    return command


def launch_environment(spec: ServerSpec, environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of one server, made from the run's."""
    kept = {name: value for name, value in environment.items() if name not in NOT_INHERITED}
    kept |= {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(spec.threads),
        # For the few tokens of SPARE_CONTEXT, which are never filled.
        "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        "PYTHONUNBUFFERED": "1",
    }
    # The server asks itself for a first token, which must not go through a proxy.
    for name in ("no_proxy", "NO_PROXY"):
        kept[name] = ",".join(filter(None, (kept.get(name), "127.0.0.1", "localhost", spec.host)))
    if spec.device == "cpu":
        kept["SGLANG_USE_CPU_ENGINE"] = "1"
        kept["CUDA_VISIBLE_DEVICES"] = ""
    elif spec.gpus:
        kept["CUDA_VISIBLE_DEVICES"] = ",".join(spec.gpus)
    return kept


class SglangServer:
    """A server that this run owns. Driven by one thread at a time; a context manager, at whose end it is gone.

    `api_key` opens /generate, `admin_key` weights and control; both are made here, and a restart keeps them and the
    address if it can.
    """

    def __init__(self, spec: ServerSpec) -> None:
        self.spec = spec
        self.api_key, self.admin_key = new_key(), new_key()
        self._keys = spec.folder / "keys.yaml"
        self._port = spec.port
        self._guard: subprocess.Popen[bytes] | None = None
        self._model, self._version = Path(), ""
        self._launched_at = 0.0
        spec.folder.mkdir(parents=True, exist_ok=True)
        # A resumed run finds the logs of the run before.
        self._starts = len(list(spec.folder.glob("server-*.log")))

    def __enter__(self) -> SglangServer:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    @property
    def url(self) -> str:
        """Where a client on this machine reaches it; valid from the launch on."""
        host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.spec.host, self.spec.host)
        return f"http://{f'[{host}]' if ':' in host else host}:{self._port}"

    @property
    def log(self) -> Path:
        """What the server of the last start has printed, its keys taken out."""
        return self.spec.folder / f"server-{self._starts}.log"

    @property
    def guard_pid(self) -> int | None:
        """Process id of the guard, below which are all processes of the server; None before the first launch."""
        return None if self._guard is None else self._guard.pid

    @property
    def alive(self) -> bool:
        """Whether the server's first process runs. It may be on its way down: a request tells more."""
        return self._guard is not None and self._guard.poll() is None

    def start(self, model: Path, version: str = "default") -> None:
        """Start it with the weights of a model folder and wait until it is ready. Raises ServerError, and then nothing
        of it is left.
        """
        self.launch(model, version)
        self.wait_ready()

    def launch(self, model: Path, version: str = "default") -> None:
        """Start it without waiting. Raises ServerError where it runs already or the interpreter is not there."""
        if self.alive:
            raise ServerError(f"{self.spec.name}: its server runs already at {self.url}; close it first")
        if shutil.which(self.spec.python) is None:
            raise ServerError(
                f"{self.spec.name}: there is no interpreter {self.spec.python}; set rollouts.sglang.python to one that "
                "has sglang 0.5.23"
            )
        self._model, self._version = model, version
        self._starts += 1
        self._port = self._port or free_port(self.spec.host)
        with open(os.open(self._keys, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            file.write(f"api-key: {self.api_key}\nadmin-api-key: {self.admin_key}\n")
        order = {
            "command": launch_command(self.spec, model, version, self._port, self._keys),
            "environment": launch_environment(self.spec, os.environ),
            "log": str(self.log),
            "log_bytes": LOG_BYTES,
            "secrets": [self.api_key, self.admin_key],
            "parent": os.getpid(),
            "grace_s": self.spec.grace_s,
        }
        self._launched_at = time.monotonic()
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # then it has ended, which the wait for readiness reports
            self._guard.stdin.write(json.dumps(order).encode() + b"\n")
            self._guard.stdin.flush()

    def wait_ready(self) -> None:
        """Wait until it takes requests, `start_s` seconds from its launch. Raises ServerError as `start` does."""
        try:
            for left in reversed(range(PORT_TRIES)):
                if self._became_ready():
                    return
                ended = self.death()
                if not left or self.spec.port is not None or not TAKEN.search(_last(self.log, TAIL_BYTES)):
                    raise ServerError(ended)
                self._port = None
                self.launch(self._model, self._version)
        except BaseException:
            self.close()
            raise
        finally:
            self._keys.unlink(missing_ok=True)

    def _became_ready(self) -> bool:
        """False when it ended. Raises ServerError when its time is up."""
        with httpx.Client(trust_env=False, timeout=PROBE_S) as client:
            while self.alive:
                with contextlib.suppress(httpx.TransportError):
                    if client.get(f"{self.url}/ready").status_code == 200 and self._mine(client):
                        return True
                if time.monotonic() - self._launched_at > self.spec.start_s:
                    raise ServerError(
                        f"{self.spec.name}: its SGLang server was not ready after {self.spec.start_s:g} s; "
                        f"{self._said()}; raise rollouts.sglang.start_s if it was still at work"
                    )
                time.sleep(TICK_S)
        return False

    def _mine(self, client: httpx.Client) -> bool:
        """Whether it takes this run's key: another server may have got the port first."""
        answer = client.get(f"{self.url}/model_info", headers={"Authorization": f"Bearer {self.api_key}"})
        return answer.status_code == 200

    def death(self) -> str:
        """Why a server that is not alive has ended: its exit code, the error it named and the end of its log."""
        code = self._guard.poll() if self._guard is not None else None
        if code is None:
            return f"{self.spec.name}: its SGLang server {'runs' if self.alive else 'was not started'}"
        by_signal = code - 128 in signal.valid_signals()
        how = f"was ended by {signal.Signals(code - 128).name}" if by_signal else f"ended with exit code {code}"
        return f"{self.spec.name}: its SGLang server {how}; {self._said()}"

    def _said(self) -> str:
        text = _last(self.log, TAIL_BYTES)
        lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
        faults = [found[1] for line in lines if (found := FAULT.fullmatch(line))]
        reason = f"it named {faults[-1][:TAIL_TEXT]}; " if faults else ""
        tail = " | ".join(line[:TAIL_TEXT] for line in lines[-TAIL_LINES:]) or "nothing"
        return f"{reason}the end of its log {self.log} is: {tail}"

    def restart(self, model: Path, version: str = "default") -> None:
        """End what is left of it and start it anew with the weights of a model folder; errors as for `start`."""
        self.close()
        self.start(model, version)

    def close(self) -> None:
        """End all processes of the server. Raises ServerError if its guard does not answer."""
        if self._guard is None:
            return
        assert self._guard.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._guard.stdin.close()
        try:
            self._guard.wait(self.spec.grace_s + GUARD_GRACE_S)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
            raise ServerError(f"{self.spec.name}: processes of its SGLang server could not be ended") from None
        finally:
            self._keys.unlink(missing_ok=True)


def start_all(servers: Sequence[SglangServer], model: Path, version: str = "default") -> None:
    """Start servers side by side; none is left when one fails. Raises ServerError."""
    try:
        for server in servers:
            server.launch(model, version)
        for server in servers:
            server.wait_ready()
    except BaseException:
        close_all(servers)
        raise


def close_all(servers: Sequence[SglangServer]) -> None:
    """End servers; the first failure is raised when all have been tried."""
    with contextlib.ExitStack() as stack:
        for server in servers:
            stack.callback(server.close)


def new_key() -> str:
    """A secret that is text to YAML and no flag to a command line, whatever is drawn."""
    return f"graft-{secrets.token_hex(24)}"


def free_port(host: str) -> int:
    """A port that nobody listens on at the moment."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _last(path: Path, size: int) -> str:
    """At most `size` bytes from the end of a text file; empty where there is none."""
    if not path.exists():
        return ""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode("utf-8", "replace")
