"""Real servers as processes: ready, their keys, a crash, a restart, and nothing left at any end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from server.rollouts.sglang_guard import descendants
from server.rollouts.sglang_process import ServerError, ServerSpec, SglangServer
from tests.processes import eventually, runs
from tests.sglang.conftest import CONTEXT, Live

pytestmark = [pytest.mark.sglang, pytest.mark.slow]


def ask(server: SglangServer, route: str, key: str | None, body: dict[str, Any] | None = None) -> httpx.Response:
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    method = "GET" if body is None else "POST"
    with httpx.Client(trust_env=False, timeout=60) as client:
        return client.request(method, server.url + route, headers=headers, json=body)


def generate(server: SglangServer, ids: list[int], tokens: int, key: str | None = None) -> httpx.Response:
    body = {"input_ids": ids, "sampling_params": {"max_new_tokens": tokens, "ignore_eos": True}}
    return ask(server, "/generate", key or server.api_key, body)


def processes_of(server: SglangServer) -> dict[int, str]:
    """{process id: name} of all processes of a server, which are those below its guard."""
    guard = server.guard_pid
    assert guard is not None
    return {pid: Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ").strip() for pid in descendants(guard)}


def the_one(processes: dict[int, str], part: str) -> int:
    (pid,) = (pid for pid, name in processes.items() if part in name)
    return pid


def test_each_member_is_served_by_a_server_of_its_own(live: dict[str, Live]) -> None:
    for member in live.values():
        info = ask(member.server, "/model_info", member.server.api_key).json()
        assert info["model_type"] == member.name
        answer = generate(member.server, [1, 5, 6], 4).json()
        assert len(answer["output_ids"]) == 4
        assert "text" not in answer
    assert len({member.server.url for member in live.values()}) == 2


def test_a_prompt_and_a_response_of_full_length_fit_together(live: dict[str, Live]) -> None:
    answer = generate(live["qwen3"].server, [5] * (CONTEXT - 40), 40).json()
    assert len(answer["output_ids"]) == 40
    assert answer["meta_info"]["finish_reason"] == {"type": "length", "length": 40}


@pytest.mark.parametrize("key", [None, "wrong"])
def test_wrong_and_absent_keys_are_refused_and_each_key_opens_its_own_routes(
    live: dict[str, Live], key: str | None
) -> None:
    server = live["llama"].server
    for route, body in (("/generate", {"input_ids": [5]}), ("/flush_cache", {}), ("/model_info", None)):
        assert ask(server, route, key, body).status_code == 401
    assert ask(server, "/flush_cache", server.api_key, {}).status_code == 401
    assert ask(server, "/generate", server.admin_key, {"input_ids": [5]}).status_code == 401
    assert ask(server, "/flush_cache", server.admin_key, {}).status_code == 200
    assert ask(server, "/ready", None).status_code == 200


def test_keys_stand_in_no_command_line_environment_or_log(live: dict[str, Live]) -> None:
    server = live["llama"].server
    seen = [server.log.read_text()]
    for pid in processes_of(server):
        seen += [Path(f"/proc/{pid}/{part}").read_bytes().decode(errors="replace") for part in ("cmdline", "environ")]
    assert "'api_key': '***'" in seen[0]
    for key in (server.api_key, server.admin_key):
        assert not any(key in text for text in seen)


def test_a_killed_scheduler_takes_the_server_along_and_a_restart_serves_again(live: dict[str, Live]) -> None:
    member = live["llama"]
    server, processes = member.server, processes_of(member.server)
    os.kill(the_one(processes, "sglang::scheduler"), signal.SIGKILL)
    assert eventually(lambda: not server.alive)
    assert not any(map(runs, processes))
    assert f"llama: its SGLang server was ended by SIGKILL; the end of its log {server.log} is: " in server.death()
    server.restart(member.model, "5")
    info = ask(server, "/model_info", server.api_key).json()
    assert (info["weight_version"], info["model_path"]) == ("5", str(member.model))
    assert len(generate(server, [1, 5], 3).json()["output_ids"]) == 3


def test_a_model_folder_that_is_not_there_is_named_by_the_servers_own_error(
    spec_for: Callable[..., ServerSpec], tmp_path: Path
) -> None:
    with SglangServer(spec_for("nowhere")) as server:
        with pytest.raises(ServerError) as caught:
            server.start(tmp_path / "nowhere")
        assert not server.alive
    assert str(caught.value).startswith("nowhere: its SGLang server ended with exit code 1; it named ")
    assert str(tmp_path / "nowhere") in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_server_that_is_not_ready_in_time_is_ended_with_all_its_processes(
    spec_for: Callable[..., ServerSpec], tiny_models: dict[str, Path]
) -> None:
    with SglangServer(spec_for("slow", start_s=0.1)) as server:
        with pytest.raises(ServerError, match=r"slow: its SGLang server was not ready after 0.1 s; the end of its log"):
            server.start(tiny_models["llama"])
        assert not server.alive


RUN = """
import sys, time
from pathlib import Path
from server.rollouts.sglang_process import ServerSpec, SglangServer
python, folder, model = sys.argv[1:]
server = SglangServer(ServerSpec("orphan", Path(folder), 100, python=python, start_s=300, grace_s=2))
server.start(Path(model))
print(server.guard_pid, flush=True)
time.sleep(600)
"""


def test_nothing_is_left_when_the_run_is_killed(
    sglang_python: str, tiny_models: dict[str, Path], tmp_path: Path
) -> None:
    command = [sys.executable, "-c", RUN, sglang_python, str(tmp_path), str(tiny_models["qwen3"])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        guard = int(run.stdout.readline())
        processes = [guard, *descendants(guard)]
        assert len(processes) >= 4
        run.kill()
    assert eventually(lambda: not any(map(runs, processes)))


def test_nothing_is_left_when_the_guard_is_killed(live: dict[str, Live]) -> None:
    member = live["llama"]
    processes = processes_of(member.server)
    assert member.server.guard_pid is not None
    os.kill(member.server.guard_pid, signal.SIGKILL)
    assert eventually(lambda: not any(map(runs, processes)))
    member.server.restart(member.model, "0")
    assert ask(member.server, "/ready", None).status_code == 200
