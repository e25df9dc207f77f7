"""The supervised warm start of a demo member, counted in steps, reproducible to the byte and cached.

Each member learns its own corpus for some 20 seconds of one CPU core. The cache is keyed by everything the weights
depend on, so an old folder is never taken for a new recipe. Bytes are reproducible on one machine and library set;
another CPU may round differently.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn import functional

from population.demo.cache import cached_folder, entry, is_whole
from population.demo.models import SIZES, build_model, build_tokenizer, save_member
from population.demo.suites import DESIGNS, Pairs
from population.errors import RunError

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

Progress = Callable[[int, int, float], None]
"""Called as progress(step, total steps, loss of the step) after every step; steps count from 1."""

RECIPE_VERSION = 1
PREFIX = "demo:"
IGNORED = -100


class WarmStartError(RunError, RuntimeError):
    """A warm start that could not be finished; the message names the member."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything that the weights of a warm-started member depend on."""

    member: str
    seed: int
    steps: int
    size: str = "tiny"
    initial_std: float = 0.05
    batch_rows: int = 32
    learning_rate: float = 4e-3
    warmup_steps: int = 50
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0

    def configuration(self) -> dict[str, Any]:
        """The recipe in plain values, with what it refers to by name spelled out; JSON-ready."""
        tokenizer = build_tokenizer(self.member).backend_tokenizer.to_str()
        return {
            **asdict(self),
            "betas": list(self.betas),
            "recipe_version": RECIPE_VERSION,
            "architecture": asdict(SIZES[self.size]),
            "readings": DESIGNS[self.member].suite.taught(DESIGNS[self.member].family),
            "tokenizer": _digest(tokenizer),
            "corpus": _digest(repr(self.examples(360))),
        }

    def examples(self, count: int) -> Pairs:
        """A corpus of `count` pairs for this seed."""
        design = DESIGNS[self.member]
        return design.suite.examples(design.family, count, self.seed)

    @property
    def name(self) -> str:
        """The readable part of the cache folder's name."""
        return f"{self.member}-{self.size}-seed{self.seed}"

    def rate(self, step: int) -> float:
        """Learning rate of a step: linear warm-up times a square-root decay that ends at zero."""
        return self.learning_rate * min(1.0, step / self.warmup_steps) * math.sqrt(1 - (step - 1) / self.steps)


@dataclass(frozen=True, slots=True)
class Batch:
    """`ids` [rows, width] right-padded; `targets` [rows, width] with IGNORED on prompts and padding."""

    ids: torch.Tensor
    targets: torch.Tensor


def prepare(
    member: str,
    *,
    seed: int,
    cache_dir: str | Path,
    steps: int | None = None,
    size: str = "tiny",
    progress: Progress | None = None,
) -> Path:
    """The folder with a member's warm-started model and tokenizer, trained here unless the cache has it.

    ValueError for a member or size that the demo does not have. `progress` is not called when the cache is used.
    """
    recipe = recipe_for(member, seed=seed, steps=steps, size=size)
    build = partial(_build, recipe, progress)
    return cached_folder(Path(cache_dir), recipe.name, recipe.configuration(), build)


def find(member: str, *, seed: int, cache_dir: str | Path, steps: int | None = None, size: str = "tiny") -> Path | None:
    """The folder that `prepare` would find in the cache, or None; trains nothing."""
    recipe = recipe_for(member, seed=seed, steps=steps, size=size)
    configuration = recipe.configuration()
    folder = entry(Path(cache_dir), recipe.name, configuration)
    return folder if is_whole(folder, configuration) else None


def is_demo(model: str) -> bool:
    """Whether a model name of the configuration asks for a member of the demo."""
    return model.startswith(PREFIX)


def parse(model: str) -> tuple[str, str]:
    """Member and size of a model name `demo:<member>[:<size>]`; ValueError that says what there is."""
    prefix, _, rest = model.partition(":")
    name, _, size = rest.partition(":")
    size = size or "tiny"
    if prefix + ":" == PREFIX and name in DESIGNS and size in SIZES:
        return name, size
    names = ", ".join(PREFIX + member for member in DESIGNS)
    raise ValueError(
        f"{model!r} is no demo model: use one of {names}, with {' or '.join(':' + s for s in SIZES)} for another size"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def recipe_for(member: str, *, seed: int, steps: int | None = None, size: str = "tiny") -> Recipe:
    """The recipe of a member with its own number of steps unless `steps` is given."""
    name, size = parse(f"{PREFIX}{member}:{size}")
    if steps is not None and steps < 1:
        raise ValueError(f"the warm start of {member} needs at least one step, not {steps}")
    return Recipe(name, seed, DESIGNS[name].steps if steps is None else steps, size)


def train(recipe: Recipe, progress: Progress | None = None) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Trains a member from scratch on one thread. WarmStartError when the loss stops being a number."""
    tokenizer = build_tokenizer(recipe.member)
    seed = random.Random(f"weights of {recipe.member}, seed {recipe.seed}").getrandbits(31)
    model = build_model(
        recipe.member, tokenizer, seed=seed, size=SIZES[recipe.size], initial_std=recipe.initial_std
    ).train()
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay, fused=True
    )
    batches = encode(recipe.examples(recipe.steps * recipe.batch_rows), tokenizer, recipe.batch_rows)
    with _one_thread():
        for step, batch in enumerate(batches, start=1):
            for group in optimizer.param_groups:
                group["lr"] = recipe.rate(step)
            loss = _step(model, optimizer, batch, recipe.max_grad_norm)
            if not math.isfinite(loss):
                raise WarmStartError(
                    f"warm start of {recipe.member}: the loss is {loss} at step {step} of {recipe.steps}"
                )
            if progress is not None:
                progress(step, recipe.steps, loss)
    return model.eval(), tokenizer


def encode(pairs: list[tuple[str, str]], tokenizer: PreTrainedTokenizerFast, rows: int) -> list[Batch]:
    """(prompt, response) pairs as right-padded batches `<bos> prompt response <eos>`; only responses are targets."""
    prompts = tokenizer([prompt for prompt, _ in pairs], add_special_tokens=False)["input_ids"]
    responses = tokenizer([response for _, response in pairs], add_special_tokens=False)["input_ids"]
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    encoded = [([bos, *p], [*r, eos]) for p, r in zip(prompts, responses, strict=True)]
    return [_pad(encoded[start : start + rows], tokenizer.pad_token_id) for start in range(0, len(encoded), rows)]


def _pad(rows: list[tuple[list[int], list[int]]], pad: int) -> Batch:
    width = max(len(prompt) + len(response) for prompt, response in rows)
    ids = np.full((len(rows), width), pad, dtype=np.int64)
    targets = np.full((len(rows), width), IGNORED, dtype=np.int64)
    for row, (prompt, response) in enumerate(rows):
        end = len(prompt) + len(response)
        ids[row, :end] = prompt + response
        targets[row, len(prompt) : end] = response
    return Batch(torch.from_numpy(ids), torch.from_numpy(targets))


def _step(model: PreTrainedModel, optimizer: torch.optim.Optimizer, batch: Batch, max_grad_norm: float) -> float:
    # Right padding under a causal model: no real token sees a padded one, so no mask is needed.
    logits = model(input_ids=batch.ids[:, :-1], use_cache=False).logits
    loss = functional.cross_entropy(logits.flatten(0, 1), batch.targets[:, 1:].flatten(), ignore_index=IGNORED)
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_grad_norm)
    optimizer.step()
    return loss.item()


def _build(recipe: Recipe, progress: Progress | None, folder: Path) -> None:
    save_member(folder, *train(recipe, progress))


@contextmanager
def _one_thread() -> Iterator[None]:
    """One thread (sums in one order) and no denormals (slow); the caller's settings come back afterwards."""
    threads = torch.get_num_threads()
    kept_denormals = bool(torch.tensor(1e-40).mul(1.0) != 0)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(not kept_denormals)
        torch.set_num_threads(threads)
