"""`graft doctor`: every finding has a status, a reason and a remedy, whatever the machine lacks."""

from __future__ import annotations

import json
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from population import doctor
from population.doctor import Check
from population.machine import IMPORTS_PROBE, MODULE_PROBE, SQLITE_PROBE, VERIFIER_PROBE, Machine, Probe, run_probe

PATIENCE_S = 60.0
VERSIONS = {
    "torch": "2.13.0+cpu",
    "transformers": "5.19.0",
    "deepspeed": "0.19.8",
    "math-verify": "0.9.0",
    "streamlit": "1.67.0",
    "numpy": "2.3.5",
}
FACTS: dict[str, object] = {
    "torch": "2.13.0+cpu",
    "cuda_build": "",
    "devices": [],
    "transformers": "5.19.0",
    "deepspeed": "0.19.8",
}


def answer(code: str, argument: str, deadline_s: float) -> Probe:
    """A healthy machine's answers, without starting a process."""
    if code == IMPORTS_PROBE:
        return Probe(FACTS)
    if code == SQLITE_PROBE:
        return Probe({"sqlite": "3.40.1", "journal": "wal"})
    if code == VERIFIER_PROBE:
        return Probe({"verified": True})
    return Probe({"imported": True})


def machine(
    *,
    without: tuple[str, ...] = (),
    versions: dict[str, str] | None = None,
    requirements: dict[str, list[str]] | None = None,
    probes: dict[str, Probe] | None = None,
    programs: tuple[str, ...] = ("chromium",),
    python: tuple[int, int, int] = (3, 11, 7),
) -> Machine:
    """A simulated machine: what is installed, how probes end and which programs there are."""
    installed = {name: v for name, v in (VERSIONS | (versions or {})).items() if name not in without}
    declared = {doctor.DISTRIBUTION: ["numpy>=2.3.5", 'ray>=2.60; extra == "cluster"']} | (requirements or {})
    return Machine(
        version=installed.get,
        requirements=lambda name: declared.get(name, []),
        probe=lambda code, argument, deadline: (probes or {}).get(code) or answer(code, argument, deadline),
        which=lambda name: f"/usr/bin/{name}" if name in programs else None,
        python=python,
    )


def find(checks: list[Check], name: str) -> Check:
    return next(check for check in checks if check.name == name)


def test_a_healthy_machine_can_run_and_lists_what_is_optional(tmp_path: Path) -> None:
    checks = doctor.diagnose(tmp_path, machine())
    assert doctor.can_run(checks)
    assert {c.name for c in checks if c.status == "missing"} == {"GPU", "SGLang", "Ray", "PostgreSQL"}
    assert all(c.status == "ok" for c in checks if c.required)


@pytest.mark.parametrize(("package", "row"), [("torch", "torch"), ("deepspeed", "DeepSpeed"), ("numpy", "Packages")])
def test_a_missing_package_of_the_base_install_stops_the_default(package: str, row: str, tmp_path: Path) -> None:
    checks = doctor.diagnose(tmp_path, machine(without=(package,)))
    assert not doctor.can_run(checks)
    assert find(checks, row).status in {"missing", "problem"}
    assert find(checks, row).fix == "make setup"


def test_a_package_out_of_range_is_named_with_what_was_wanted(tmp_path: Path) -> None:
    row = find(doctor.diagnose(tmp_path, machine(versions={"numpy": "1.26.0"})), "Packages")
    assert row.status == "problem"
    assert "numpy is 1.26.0, wanted >=2.3.5" in row.detail


def test_an_old_python_is_a_problem(tmp_path: Path) -> None:
    checks = doctor.diagnose(tmp_path, machine(python=(3, 10, 4)))
    assert find(checks, "Python").status == "problem"
    assert not doctor.can_run(checks)


@pytest.mark.parametrize(
    ("probe", "reason"),
    [
        (Probe({"torch": "2.13.0", "transformers": "5.19.0", "deepspeed_error": "OSError: libaio"}), "OSError: libaio"),
        (Probe({"torch": "2.13.0", "transformers": "5.19.0"}, "the process was killed by signal 4"), "signal 4"),
        (Probe({"torch": "2.13.0"}, "no answer within 120 s"), "no answer within 120 s"),
    ],
)
def test_an_installed_package_that_does_not_import_is_a_problem_with_its_reason(
    probe: Probe, reason: str, tmp_path: Path
) -> None:
    checks = doctor.diagnose(tmp_path, machine(probes={IMPORTS_PROBE: probe}))
    row = find(checks, "DeepSpeed")
    assert row.status == "problem"
    assert reason in row.detail
    assert find(checks, "torch").status == "ok"
    assert not doctor.can_run(checks)


def test_a_cpu_build_of_torch_beside_a_driver_is_told(tmp_path: Path) -> None:
    row = find(doctor.diagnose(tmp_path, machine(programs=("nvidia-smi",))), "GPU")
    assert row.status == "problem"
    assert "CPU build" in row.detail
    assert "[gpu]" in row.fix


def test_a_gpu_is_listed_with_its_memory(tmp_path: Path) -> None:
    facts = FACTS | {"devices": [["NVIDIA H200", 139 * doctor.GIB]], "cuda_build": "13.0"}
    checks = doctor.diagnose(tmp_path, machine(probes={IMPORTS_PROBE: Probe(facts)}))
    assert find(checks, "GPU") == Check("GPU", "ok", "NVIDIA H200 (139 GiB)")


def test_sglang_beside_another_torch_than_it_pins_is_a_problem_but_the_default_runs(tmp_path: Path) -> None:
    simulated = machine(
        versions={"sglang": "0.5.23"},
        requirements={"sglang": ["torch==2.14.1", "transformers==5.19.0", "kernels<0.15", 'torch==1.0; extra == "x"']},
    )
    checks = doctor.diagnose(tmp_path, simulated)
    assert find(checks, "SGLang").status == "problem"
    assert "wants torch==2.14.1, found 2.13.0+cpu" in find(checks, "SGLang").detail
    assert "transformers" not in find(checks, "SGLang").detail
    assert doctor.can_run(checks)


def test_a_driver_that_does_not_import_is_told_apart_from_a_missing_one(tmp_path: Path) -> None:
    simulated = machine(
        versions={"psycopg": "3.3.9"},
        probes={MODULE_PROBE: Probe({}, "ImportError: no pq wrapper available")},
    )
    row = find(doctor.diagnose(tmp_path, simulated), "PostgreSQL")
    assert (row.status, "no pq wrapper" in row.detail) == ("problem", True)


def test_a_folder_without_write_ahead_log_stops_the_default(tmp_path: Path) -> None:
    probes = {SQLITE_PROBE: Probe({"sqlite": "3.40.1", "journal": "delete"})}
    checks = doctor.diagnose(tmp_path, machine(probes=probes))
    assert "the journal stays 'delete'" in find(checks, "SQLite").detail
    assert "local disk" in find(checks, "SQLite").fix
    assert not doctor.can_run(checks)


def test_a_broken_verifier_is_told_and_exact_answers_still_run(tmp_path: Path) -> None:
    probes = {VERIFIER_PROBE: Probe({}, "ModuleNotFoundError: No module named 'antlr4'")}
    checks = doctor.diagnose(tmp_path, machine(probes=probes))
    assert find(checks, "Verifier").status == "problem"
    assert "antlr4" in find(checks, "Verifier").detail
    assert doctor.can_run(checks)


def test_a_folder_that_is_not_there_yet_is_judged_by_its_parent(tmp_path: Path) -> None:
    assert str(tmp_path) in find(doctor.diagnose(tmp_path / "runs" / "new", machine()), "Disk").detail
    assert not (tmp_path / "runs").exists()


def test_everything_that_is_not_ok_has_a_reason_and_what_is_required_a_remedy(tmp_path: Path) -> None:
    silent = Probe({}, "no answer within 1 s")
    bare = Machine(
        version=lambda name: None,
        requirements=lambda name: ["numpy>=2.3.5"],
        probe=lambda *_: silent,
        which=lambda name: None,
        python=(3, 9, 0),
    )
    checks = doctor.diagnose(tmp_path, bare)
    assert all(check.detail for check in checks)
    assert all(check.fix for check in checks if check.required and check.status != "ok")


def test_probes_report_a_crash_a_hang_and_an_error() -> None:
    assert "signal 9" in run_probe("import os; os.kill(os.getpid(), 9)", "", PATIENCE_S).failure
    hang = "import time; print('{\"first\": 1}', flush=True); time.sleep(10_000)"
    for deadline in (1.0, 5.0, PATIENCE_S):  # the first in which Python starts and prints, on a machine of any speed
        probe = run_probe(hang, "", deadline)
        if probe.facts:
            break
    assert probe == Probe({"first": 1}, f"no answer within {deadline:.0f} s")
    assert run_probe("raise ValueError('bad thing')", "", PATIENCE_S).failure == "ValueError: bad thing"


def test_the_sqlite_probe_leaves_nothing_behind(tmp_path: Path) -> None:
    probe = run_probe(SQLITE_PROBE, str(tmp_path), PATIENCE_S)
    assert probe.facts["journal"] == "wal"
    assert list(tmp_path.iterdir()) == []


def test_run_prints_json_for_machines_and_says_whether_the_default_runs(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code = doctor.run(as_json=True, folder=tmp_path)
    report = json.loads(capsys.readouterr().out)
    assert code == (0 if report["can_run"] else 1)
    rows = {row["name"]: row for row in report["checks"]}
    assert rows["torch"]["status"] == "ok"
    assert rows["DeepSpeed"]["status"] == "ok"
    assert rows["Verifier"]["status"] == "ok"


def test_the_table_shows_brackets_and_the_verdict_as_they_are(tmp_path: Path) -> None:
    out = StringIO()
    doctor.show(doctor.diagnose(tmp_path, machine(programs=("nvidia-smi",))), Console(file=out, width=200))
    assert "pip install -e '.[gpu]' -c constraints-gpu.txt" in out.getvalue()
    assert "can run here: make demo" in out.getvalue()


def test_looking_costs_no_heavy_import() -> None:
    code = (
        "import sys; from population import doctor; doctor.diagnose(); "
        "print({'torch', 'deepspeed', 'transformers', 'streamlit'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == "set()", done.stderr
