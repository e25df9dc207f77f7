"""Every method trains the demo's members; without peers those whose own loss is GRPO's are GRPO bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest

from graft.methods import METHODS
from population.config import load
from population.run import Watch, train
from server.store.reader import Reader, open_reader

ALONE = ("graft", "graft-no-gate", "graft-pooled", "graft-luffy", "graft-sgt", "graft-hacpo", "graft-no-balance", "sgt")


def silent(*_: object) -> None:
    """A watcher that says nothing."""


def trained(folder: Path, method: str, *more: str) -> str:
    """Two of the demo's members, a step of eight prompts, four responses each; returns the store's URL."""
    url = f"sqlite:///{folder / f'{method}.db'}"
    small = {
        "method": method,
        "folder": folder,
        "store": url,
        "steps": 2,
        "evaluation.benchmarks": [],
        "data.prompts_per_step": 8,
        "update.prompts_per_minibatch": 4,
        "exchange.holdout": 0,
    }
    overrides = [*(f"{key}={value}" for key, value in small.items()), *more]
    if not method.startswith("grpo-"):
        overrides.append("rollouts.rollouts_per_prompt=4")
    train(load("configs/demo_pair.yaml", overrides), Watch(silent, silent, silent, silent), uid=method)
    return url


def weights(folder: Path, method: str) -> dict[str, bytes]:
    return {p.parent.name: p.read_bytes() for p in sorted((folder / method / "members").glob("*/*.safetensors"))}


@pytest.mark.parametrize("method", [name for name in METHODS if name != "stored"])
def test_every_method_trains_and_records_what_it_moved(warm_folder: Path, method: str) -> None:
    with open_reader(trained(warm_folder, method)) as reader:
        assert (reader.run(method).status, reader.run(method).method) == ("finished", method)
        counts = reader.member_counts(method, 1, 2)
        assert (reader.metric(method, "grad_norm", 1, 2)[0] > 0).all()
        moved = check_transfers(reader, method)
        assert (counts["received"] <= counts["all_fail"]).all()
    if method == "hacpo":
        assert moved == 2 * 2 * 8
    elif METHODS[method].which is None:
        assert moved == 0
    else:
        assert moved > 0


def check_transfers(reader: Reader, method: str) -> int:
    """Number of transfers; every admitted response has a weight, every other a reason."""
    rows, total = reader.transfers(method, 1, 2, limit=1000)
    pairs = reader.pair_counts(method, 1, 2)
    assert pairs["responses"].sum() == sum(row.responses for row in rows)
    assert (pairs["admitted"] + pairs["refused_floor"] + pairs["refused_other"] == pairs["responses"]).all()
    assert (reader.pair_counts(method, 1, 2)["sum_w"] >= 0).all()
    return total


@pytest.fixture(scope="module")
def alone(warm_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder with a run of grpo."""
    folder = tmp_path_factory.mktemp("alone")
    (folder / "warm-start").symlink_to(warm_folder / "warm-start")
    trained(folder, "grpo")
    return folder


@pytest.mark.parametrize("method", ALONE)
def test_a_method_whose_peers_have_nothing_to_give_is_grpo_bit_for_bit(alone: Path, method: str) -> None:
    trained(alone, method, "exchange.min_successes=5")  # no group of four has five right responses
    assert len(weights(alone, "grpo")) == 2
    assert weights(alone, method) == weights(alone, "grpo")
