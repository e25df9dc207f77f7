"""One local Ray cluster for all tests of this folder; a test, or a run in one, connects to it as to any other."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from population.config import ClusterConfig
from population.placement.ray import Cluster, connect

CPUS = 16


@pytest.fixture(scope="session")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of the cluster."""
    errors = tmp_path_factory.mktemp("head") / "errors"
    with errors.open("w") as log:
        head = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("head.py")), str(CPUS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    assert head.stdin is not None
    assert head.stdout is not None
    try:
        found = head.stdout.readline().strip()
        assert ":" in found, errors.read_text()
        yield found
    finally:
        head.stdin.close()
        head.wait(timeout=60)


@pytest.fixture(scope="module")
def cluster(address: str) -> Iterator[Cluster]:
    """A connection to the cluster; runs in the same process need a module without it."""
    with connect(address, ClusterConfig(heartbeat_s=0.5, heartbeat_deadline_s=120), {"CPU": 8}) as found:
        yield found
