"""A trainer's folder is whole or absent, continues bit for bit, and is refused where it does not belong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from population import trainer_files
from population.trainer import LoraSpec, Trainer, TrainerError, TrainerSpec
from tests.trainer.helpers import responses

STAGES: list[dict[str, Any]] = [
    {},
    {"zero_stage": 2},
    {"zero_stage": 3},
    {"dtype": "bfloat16"},
    {"lora": LoraSpec(rank=4)},
    {"lora": LoraSpec(rank=4), "zero_stage": 3},
]


def spec_of(folder: Path, **changes: Any) -> TrainerSpec:
    return TrainerSpec(str(folder), **{"learning_rate": 1e-2, "warmup_steps": 4, "device": "cpu", **changes})


@pytest.mark.parametrize("changes", STAGES)
def test_a_resumed_trainer_continues_bit_for_bit(
    models: dict[str, Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    spec = spec_of(models["qwen3"], **changes)
    straight = Trainer(spec)
    for step in (1, 2):
        last = straight.update(step, [responses(step), responses(step + 10)])
    straight.save(tmp_path / "two")
    wanted = [straight.update(step, [responses(step), responses(step + 10)]) for step in (3, 4)]
    held = straight.checksum()
    straight.close()

    resumed = Trainer(spec)
    resumed.update(1, [responses(99)])
    resumed.load(tmp_path / "two")
    assert resumed.update(2, []) == last
    assert [resumed.update(step, [responses(step), responses(step + 10)]) for step in (3, 4)] == wanted
    assert resumed.checksum() == held
    resumed.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["two"]


def test_adapters_change_only_what_they_touch_and_are_merged(models: dict[str, Path], tmp_path: Path) -> None:
    trainer = Trainer(spec_of(models["llama"], lora=LoraSpec(rank=4, target_modules=["q_proj", "v_proj"])))
    before = {name: tensor.clone() for name, tensor in trainer.weights().items()}
    trainer.update(1, [responses(1)])
    after = trainer.weights()
    changed = {name for name in after if not (after[name] == before[name]).all()}
    assert changed
    assert all(name.endswith(("q_proj.weight", "v_proj.weight")) for name in changed)
    trainer.export(tmp_path / "merged")
    plain = Trainer(spec_of(tmp_path / "merged"))
    pairs = [response.pair for response in responses(2)]
    for left, right in zip(trainer.score(pairs), plain.score(pairs), strict=True):
        assert left == pytest.approx(right, abs=1e-5)
    assert plain.checksum() == trainer.checksum()
    trainer.close()
    plain.close()


def test_saving_again_replaces_the_folder_and_a_failed_write_leaves_the_old_one(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(spec_of(models["llama"]))
    target = tmp_path / "deep" / "latest"
    trainer.save(target)
    trainer.update(1, [responses(1)])
    trainer.save(target)
    held = trainer.checksum()
    trainer.update(2, [responses(2)])

    def full_disk(folder: Path, facts: dict[str, Any]) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(trainer_files, "write_manifest", full_disk)
        with pytest.raises(OSError, match="No space left"):
            trainer.save(target)
    assert [path.name for path in target.parent.iterdir()] == ["latest"]
    trainer.load(target)
    assert trainer.checksum() == held
    trainer.save(target)
    assert [path.name for path in target.parent.iterdir()] == ["latest"]
    trainer.close()


def test_a_folder_that_does_not_belong_is_refused_with_the_reason(models: dict[str, Path], tmp_path: Path) -> None:
    trainer = Trainer(spec_of(models["llama"]))
    trainer.save(tmp_path / "llama")
    held = trainer.checksum()
    other = Trainer(spec_of(models["qwen3"]))
    with pytest.raises(TrainerError, match="written for another model"):
        other.load(tmp_path / "llama")
    other.close()
    staged = Trainer(spec_of(models["llama"], zero_stage=2))
    with pytest.raises(TrainerError, match=r"another zero stage: it has 1, this trainer 2"):
        staged.load(tmp_path / "llama")
    staged.close()

    manifest = tmp_path / "llama" / trainer_files.MANIFEST
    facts = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**facts, "world_size": 2}))
    with pytest.raises(TrainerError, match=r"another world size: it has 2, this trainer 1"):
        trainer.load(tmp_path / "llama")
    manifest.write_text(json.dumps({**facts, "format": 99}))
    with pytest.raises(TrainerError, match="format 99"):
        trainer.load(tmp_path / "llama")
    manifest.write_text(json.dumps(facts)[:-9])
    with pytest.raises(TrainerError, match="damaged"):
        trainer.load(tmp_path / "llama")
    manifest.write_text(json.dumps(facts))
    name, size = next((name, size) for name, size in facts["files"].items() if name.endswith(".pt"))
    with (tmp_path / "llama" / name).open("rb+") as file:
        file.truncate(size // 2)
    with pytest.raises(TrainerError, match=rf"damaged, {name} is {size // 2} bytes instead of {size}"):
        trainer.load(tmp_path / "llama")
    with pytest.raises(TrainerError, match="no trainer checkpoint here"):
        trainer.load(tmp_path / "nowhere")
    assert trainer.checksum() == held
    trainer.close()
