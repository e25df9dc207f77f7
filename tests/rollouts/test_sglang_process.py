"""Servers as processes: command line, keys, readiness, faults by name, and an end that leaves nothing."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from server.rollouts import sglang_process
from server.rollouts.sglang_guard import Log
from server.rollouts.sglang_process import (
    ServerError,
    ServerSpec,
    SglangServer,
    close_all,
    free_port,
    launch_command,
    launch_environment,
    new_key,
    start_all,
)
from tests.processes import eventually, runs

FAKE = Path(__file__).with_name("fake_sglang.py")
DEADLINE_S = 120.0


def spec_for(folder: Path, /, **changes: object) -> ServerSpec:
    """Of a fake server; its interpreter is a script that runs the fake whatever module it is asked for."""
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE}" "$@"\n')
    python.chmod(0o755)
    spec = ServerSpec("member 'a'", folder / "server", 100, python=str(python), start_s=DEADLINE_S, grace_s=0.5)
    return replace(spec, **changes)  # type: ignore[arg-type]


def model_that(folder: Path, behaviour: str = "") -> Path:
    model = folder / (behaviour or "model")
    model.mkdir()
    (model / "behaviour").write_text(behaviour)
    return model


def processes_of(model: Path) -> list[int]:
    return [int(pid) for pid in (model / "processes").read_text().split()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SglangServer]:
    with SglangServer(spec_for(tmp_path)) as server:
        yield server


SPEC = ServerSpec("member 'a'", Path("/run/a"), 100, python="py", start_s=5)
OURS = (
    "--model-path /m --weight-version 7 --host 127.0.0.1 --port 31000 --device {device} --dtype {dtype} "
    "--context-length 108 --tensor-parallel-size {tp} --data-parallel-size {dp} --skip-tokenizer-init"
)


def command(spec: ServerSpec) -> str:
    return " ".join(launch_command(spec, Path("/m"), "7", 31000, Path("/run/a/keys.yaml")))


def test_without_a_gpu_the_command_asks_for_torchs_own_kernels() -> None:
    assert command(SPEC) == (
        "py -m sglang.launch_server --config /run/a/keys.yaml "
        "--attention-backend torch_native --sampling-backend pytorch "
        "--grammar-backend none --disable-overlap-schedule --sleep-on-idle --mem-fraction-static 0.3 "
        "--max-total-tokens 20000 " + OURS.format(device="cpu", dtype="float32", tp=1, dp=1)
    )


def test_on_a_gpu_every_setting_is_in_the_command() -> None:
    spec = replace(
        SPEC,
        device="cuda",
        dtype="bfloat16",
        tensor_parallel=4,
        data_parallel=2,
        memory_fraction=0.5,
        memory_saver=True,
    )
    assert command(spec) == (
        "py -m sglang.launch_server --config /run/a/keys.yaml --log-level-http warning "
        + OURS.format(device="cuda", dtype="bfloat16", tp=4, dp=2)
        + " --mem-fraction-static 0.5 --enable-memory-saver"
    )


def test_flags_of_the_configuration_go_in_as_they_are_and_replace_the_defaults() -> None:
    flags = {
        "enable-deterministic-inference": True,
        "attention-backend": "triton",
        "disable-overlap-schedule": False,
        "cuda-graph-bs": (1, 2, 4),
        "schedule-conservativeness": 0.8,
    }
    words = command(replace(SPEC, flags=flags))
    for expected in (
        "--enable-deterministic-inference --cuda",
        "--attention-backend triton ",
        "--cuda-graph-bs 1 2 4 ",
        "--schedule-conservativeness 0.8 ",
    ):
        assert expected in words
    assert "torch_native" not in words
    assert "--disable-overlap-schedule" not in words


def test_the_environment_has_the_gpus_and_nothing_that_is_the_runs_own() -> None:
    ours = {
        "PATH": "/bin",
        "PYTHONPATH": "/x",
        "RANK": "1",
        "MASTER_PORT": "9",
        "NO_PROXY": "h",
        "CUDA_VISIBLE_DEVICES": "0",
    }
    on_gpu = launch_environment(replace(SPEC, device="cuda", gpus=("4", "GPU-3f")), ours)
    assert on_gpu["CUDA_VISIBLE_DEVICES"] == "4,GPU-3f"
    assert {"PATH", "HF_HUB_OFFLINE"} <= set(on_gpu)
    assert not {"PYTHONPATH", "RANK", "MASTER_PORT", "SGLANG_USE_CPU_ENGINE"} & set(on_gpu)
    assert on_gpu["NO_PROXY"].split(",")[:2] == ["h", "127.0.0.1"]
    assert launch_environment(replace(SPEC, device="cuda"), ours)["CUDA_VISIBLE_DEVICES"] == "0"
    on_cpu = launch_environment(SPEC, ours)
    assert (on_cpu["SGLANG_USE_CPU_ENGINE"], on_cpu["CUDA_VISIBLE_DEVICES"]) == ("1", "")


def test_a_started_server_is_ready_and_nothing_is_left_of_it_after_close(server: SglangServer, tmp_path: Path) -> None:
    model = model_that(tmp_path)
    server.start(model, "3")
    assert server.alive
    assert "--weight-version 3" in server.log.read_text()
    processes = processes_of(model)
    assert all(map(runs, processes))
    server.close()
    assert not server.alive
    assert not any(map(runs, processes))
    assert not (tmp_path / "server" / "keys.yaml").exists()


def test_processes_that_ignore_sigterm_are_killed(server: SglangServer, tmp_path: Path) -> None:
    model = model_that(tmp_path, "stubborn")
    server.start(model)
    processes = processes_of(model)
    server.close()
    assert not any(map(runs, processes))
    assert "was ended by SIGKILL" in server.death()


def test_keys_are_in_no_command_line_environment_or_log(server: SglangServer, tmp_path: Path) -> None:
    model = model_that(tmp_path)
    server.start(model)
    assert server.api_key != server.admin_key
    pid = processes_of(model)[0]
    seen = [Path(f"/proc/{pid}/{part}").read_text() for part in ("cmdline", "environ")] + [server.log.read_text()]
    assert "api_key='***'" in seen[-1]
    for key in (server.api_key, server.admin_key):
        assert not any(key in text for text in seen)
        assert key not in repr(server.spec)


def test_a_server_that_cannot_start_is_named_with_its_error_and_the_end_of_its_log(
    server: SglangServer, tmp_path: Path
) -> None:
    with pytest.raises(ServerError) as caught:
        server.start(model_that(tmp_path, "crash"))
    message = str(caught.value)
    assert message.startswith(
        "member 'a': its SGLang server ended with exit code 3; it named ValueError: no such model;"
    )
    assert message.endswith("server: good-bye")
    assert str(tmp_path / "server" / "server-1.log") in message
    assert "\n" not in message
    assert not server.alive


def test_a_server_that_is_never_ready_is_ended_at_its_deadline(tmp_path: Path) -> None:
    model = model_that(tmp_path, "never")
    with SglangServer(spec_for(tmp_path, start_s=1.0)) as server:
        with pytest.raises(ServerError, match=r"was not ready after 1 s; .*raise rollouts\.sglang\.start_s"):
            server.start(model)
        assert not server.alive
    assert not (model / "processes").exists() or not any(map(runs, processes_of(model)))


def test_an_interpreter_that_is_not_there_names_the_key_to_set(tmp_path: Path) -> None:
    spec = replace(spec_for(tmp_path), python=str(tmp_path / "nowhere"))
    with SglangServer(spec) as server, pytest.raises(ServerError, match=r"set rollouts\.sglang\.python"):
        server.start(tmp_path)


def test_an_interpreter_that_cannot_be_run_is_named(tmp_path: Path) -> None:
    spec = spec_for(tmp_path)
    Path(spec.python).write_text("#!/no/such/shell\n")
    with SglangServer(spec) as server, pytest.raises(ServerError, match=r"exit code 127; .*cannot be started"):
        server.start(tmp_path)


@pytest.mark.parametrize("which", [0, 1], ids=["first process", "scheduler"])
def test_a_killed_process_is_noticed_or_outlived_and_a_restart_gives_a_new_server_at_the_same_address(
    server: SglangServer, tmp_path: Path, which: int
) -> None:
    model, second = model_that(tmp_path), model_that(tmp_path, "second")
    server.start(model)
    address, keys, processes = server.url, (server.api_key, server.admin_key), processes_of(model)
    os.kill(processes[which], signal.SIGKILL)
    if which == 0:
        assert eventually(lambda: not server.alive)
        assert "its SGLang server was ended by SIGKILL; the end of its log" in server.death()
        assert not any(map(runs, processes))
    server.restart(second, "9")
    assert server.alive
    assert (server.url, (server.api_key, server.admin_key)) == (address, keys)
    assert "--weight-version 9" in server.log.read_text()
    assert server.log.name == "server-2.log"
    assert not any(map(runs, processes))


def test_a_server_that_runs_is_not_started_again(server: SglangServer, tmp_path: Path) -> None:
    model = model_that(tmp_path)
    server.start(model)
    with pytest.raises(ServerError, match="runs already"):
        server.launch(model)


def test_replicas_start_together_and_all_end_when_one_cannot(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    good, bad = model_that(folders[0]), model_that(folders[1], "crash")
    servers = [SglangServer(spec_for(folder)) for folder in folders]
    start_all(servers, good)
    assert len({server.url for server in servers}) == 2
    close_all(servers)
    with pytest.raises(ServerError):
        start_all(servers, bad)
    assert not any(server.alive for server in servers)


def test_another_server_at_the_port_is_not_taken_for_ours(tmp_path: Path) -> None:
    """A free port may be taken between the look and the start; the second server then cannot listen and ends."""
    first_model, second_model = model_that(tmp_path, "first"), model_that(tmp_path, "second")
    with SglangServer(spec_for(tmp_path)) as first:
        first.start(first_model)
        spec = spec_for(tmp_path, port=int(first.url.rpartition(":")[2]), folder=tmp_path / "other")
        with SglangServer(spec) as second, pytest.raises(ServerError, match="Address already in use"):
            second.start(second_model)
        assert first.alive


def test_a_port_that_was_free_and_is_not_any_more_gives_way_to_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = model_that(tmp_path)
    with SglangServer(spec_for(tmp_path)) as first, SglangServer(spec_for(tmp_path, folder=tmp_path / "b")) as second:
        first.start(model)
        offered = [int(first.url.rpartition(":")[2]), free_port("127.0.0.1")]
        monkeypatch.setattr(sglang_process, "free_port", lambda _host: offered.pop(0))
        second.start(model)
        assert second.alive
        assert second.url != first.url


ORPHANING = """
import sys, time
from pathlib import Path
from server.rollouts.sglang_process import ServerSpec, SglangServer
folder, python, model = map(Path, sys.argv[1:])
server = SglangServer(ServerSpec("a", folder, 100, python=str(python), start_s=120, grace_s=0.5))
server.start(model)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_key_is_one_word_that_is_no_number_and_no_flag() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(re.fullmatch(r"graft-[0-9a-f]{48}", key) for key in keys)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=["SIGKILL", "SIGTERM"])
def test_nothing_is_left_of_a_server_whose_run_is_killed(tmp_path: Path, how: signal.Signals) -> None:
    model, spec = model_that(tmp_path), spec_for(tmp_path)
    command = [sys.executable, "-c", ORPHANING, str(spec.folder), spec.python, str(model)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "ready\n"
        processes = processes_of(model)
        assert all(map(runs, processes))
        run.send_signal(how)
    assert eventually(lambda: not any(map(runs, processes)))


def test_a_server_whose_guard_is_killed_ends_too(server: SglangServer, tmp_path: Path) -> None:
    model = model_that(tmp_path)
    server.start(model)
    first = processes_of(model)[0]
    assert server.guard_pid is not None
    os.kill(server.guard_pid, signal.SIGKILL)
    assert eventually(lambda: not server.alive and not runs(first))
    os.kill(processes_of(model)[1], signal.SIGKILL)  # SGLang's own processes end with their parent, the fake's do not


def test_a_server_that_prints_for_ever_is_ended_and_its_log_stays_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sglang_process, "LOG_BYTES", 100_000)
    model = model_that(tmp_path, "noisy")
    with SglangServer(spec_for(tmp_path)) as server:
        server.start(model)
        older = server.log.with_name(server.log.name + ".1")
        assert eventually(older.exists)
    sizes = [path.stat().st_size for path in (server.log, older) if path.exists()]
    assert max(sizes) < 100_000 + 2 * (1 << 16)
    assert len(server.death()) < 4000


def test_the_log_takes_secrets_out_wherever_a_piece_ends(tmp_path: Path) -> None:
    log = Log(tmp_path / "log", 1 << 20, ["secret-one", "secret-two"])
    for piece in (b"a secret-", b"one b\nsecret-t", b"wo", b" c"):
        log.write(piece)
    log.write(b"", whole=True)
    assert (tmp_path / "log").read_text() == "a *** b\n*** c"
