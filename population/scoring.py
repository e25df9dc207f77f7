"""Log-probabilities of response tokens under one model: the module a trainer trains, and which short cuts it may take.

Families differ (soft-caps, logit scales, head biases, positions that packs cannot restart, dropout), so `probe`
compares every short cut with the model's own logits on random ids, one sequence at a time. A short cut that disagrees
is not taken and a note says so; a model that disagrees with itself in a batch is refused by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from population.errors import RunError
from population.head import ChunkedHead, HeadOptions
from population.packing import Layout, MicroBatch, Pair, attention_mask, blank_batch, micro_batches, pack

__all__ = ["LogpModel", "Paths", "UnsupportedModel", "pack", "probe", "score", "silence_dropout"]

# Largest difference of a log-probability that rounding explains.
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6, torch.bfloat16: 0.15, torch.float16: 0.05}


class UnsupportedModel(RunError, ValueError):
    """A model whose log-probabilities cannot be computed in batches; the message names it and what differs."""


@dataclass(frozen=True, slots=True)
class Paths:
    """Which short cuts equal the model's own logits: packs, rows that share a prompt, the chunked head."""

    packed: bool
    shared: bool
    chunked_head: bool
    notes: tuple[str, ...] = ()


class LogpModel(nn.Module):
    """A causal LM whose forward gives the log-probabilities of response tokens, and nothing else.

    One module, so that whatever hooks a trainer puts on a module fire around all of it. Only the positions that predict
    a response token pass through the head.
    """

    def __init__(self, hf: nn.Module, options: HeadOptions, *, chunked_head: bool) -> None:
        super().__init__()
        self.hf = hf
        self.options = options
        excluded = torch.tensor(options.excluded, dtype=torch.int64, device=next(hf.parameters()).device)
        self.excluded: torch.Tensor
        self.register_buffer("excluded", excluded, persistent=False)
        self.head = ChunkedHead(_output_linear(hf), _with_family(hf, options)) if chunked_head else None

    def forward(
        self,
        input_ids: torch.Tensor,
        position_ids: torch.Tensor | None,
        segments: torch.Tensor | None,
        positions: torch.Tensor,
        targets: torch.Tensor,
    ) -> torch.Tensor:
        """The fields of a `MicroBatch` -> log-probabilities [N] float32 at the options' temperature."""
        inputs: dict[str, Any] = {"input_ids": input_ids, "use_cache": False}
        if position_ids is not None:
            inputs["position_ids"] = position_ids
        if segments is not None:
            inputs["attention_mask"] = attention_mask(segments, next(self.hf.parameters()).dtype)
        if self.head is not None:
            hidden = self.hf.base_model(**inputs)[0]  # type: ignore[operator]
            return self.head(hidden.flatten(0, 1).index_select(0, positions), targets, self.excluded)
        logits = self.hf(**inputs).logits.flatten(0, 1).index_select(0, positions)
        return _logprobs(logits, targets, self.excluded, self.options)


def token_logprobs(model: Callable[..., torch.Tensor], batch: MicroBatch) -> torch.Tensor:
    """Run a `LogpModel` (or an engine around one) on a micro-batch: [N] float32."""
    return model(batch.input_ids, batch.position_ids, batch.segments, batch.positions, batch.targets)


@torch.no_grad()
def score(
    model: Callable[..., torch.Tensor], batches: Sequence[MicroBatch | None], device: torch.device
) -> dict[int, NDArray[np.float32]]:
    """Log-probabilities of every response token, [T_i] float32, by item number.

    None among the batches keeps ranks in step where a forward is collective: it runs, and gives nothing.
    """
    results: dict[int, NDArray[np.float32]] = {}
    for batch in batches:
        values = token_logprobs(model, (batch or blank_batch()).to(device)).float().cpu().numpy()
        if batch is not None:
            parts = np.split(values, np.cumsum(batch.lengths)[:-1])
            results.update(zip(batch.items, parts, strict=True))
    return results


def silence_dropout(hf: nn.Module) -> tuple[str, ...]:
    """Set every dropout to 0, in modules and configuration: a ratio of two random numbers is not a policy ratio."""
    found = set()
    for name, module in hf.named_modules():
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0:
            module.p = 0.0
            found.add(type(module).__name__)
        for attribute, value in list(vars(module).items()):
            if "dropout" in attribute and isinstance(value, float) and value > 0:
                setattr(module, attribute, 0.0)
                found.add(attribute or name)
    config = getattr(hf, "config", None)
    for key, value in list(vars(config).items()) if config is not None else ():
        relevant = ("dropout" in key or key.endswith("pdrop")) and not key.startswith(("classifier", "summary"))
        if relevant and isinstance(value, float) and value > 0:
            setattr(config, key, 0.0)
            found.add(key)
    return (f"dropout set to 0 ({', '.join(sorted(found))})",) if found else ()


def probe(hf: nn.Module, options: HeadOptions | None = None, *, seed: int = 0) -> Paths:
    """Compare each short cut with the model's own logits, one sequence at a time, on random ids.

    Raises UnsupportedModel when those are not finite, or change when sequences of different lengths share a batch.
    """
    options = options or HeadOptions(chunk=3)
    name = f"{type(hf).__name__} ({getattr(getattr(hf, 'config', None), 'model_type', 'unknown type')})"
    tolerance = TOLERANCE.get(next(hf.parameters()).dtype, 1e-4)
    limit = options.limit or int(hf.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
    pairs = _random_pairs(np.setdiff1d(np.arange(limit), options.excluded), seed)
    own = LogpModel(hf, options, chunked_head=False)
    reference = np.concatenate([_run(own, [pair]) for pair in pairs])
    if not np.isfinite(reference).all():
        raise UnsupportedModel(f"{name}: its logits are not finite on random ids")
    gap = float(np.abs(_run(own, pairs) - reference).max())
    if not gap <= tolerance:
        raise UnsupportedModel(
            f"{name}: log-probabilities change by {gap:.2g} when sequences of different lengths share a batch; "
            "members of this family cannot be trained"
        )
    # What another batch shape does to rounding is the measure for paths that only arrange the tokens otherwise.
    rounding = min(tolerance, max(4 * gap, tolerance / 8))
    head = _disagreement(
        lambda: _run(LogpModel(hf, options, chunked_head=True), pairs), reference, tolerance, "the chunked head"
    )
    packs = _disagreement(lambda: _run(own, pairs, "packed"), reference, rounding, "packing")
    window = "" if _attends_everywhere(hf) else "a shared prompt is not tried on layers with a window or a state"
    shared = window or _disagreement(lambda: _run(own, pairs, share=64), reference, rounding, "a shared prompt")
    found = ((head, "its own logits are used"), (packs, "rows are padded"), (shared, "every row has its own prompt"))
    notes = tuple(f"{name}: {problem}; {instead}" for problem, instead in found if problem)
    return Paths(packed=not packs, shared=not shared, chunked_head=not head, notes=notes)


def _disagreement(
    compute: Callable[[], NDArray[np.float32]], reference: NDArray[np.float32], allowed: float, what: str
) -> str:
    """Empty when a path gives the reference; otherwise by how much it differs, or how it fails."""
    try:
        difference = float(np.abs(compute() - reference).max())
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError) as error:
        return f"{what} fails ({type(error).__name__}: {str(error)[:80]})"
    return "" if difference <= allowed else f"{what} differs by {difference:.2g}"


def _run(model: LogpModel, pairs: Sequence[Pair], layout: Layout = "rows", share: int = 0) -> NDArray[np.float32]:
    """Log-probabilities of all pairs, one after the other."""
    batches = micro_batches(pairs, layout=layout, max_tokens=4096, share_tokens=share)
    found = score(model, batches, next(model.parameters()).device)
    return np.concatenate([found[item] for item in range(len(pairs))])


def _random_pairs(ids: NDArray[np.int64], seed: int) -> list[Pair]:
    """Three responses, two of them to one prompt, all of different lengths."""
    draw = np.random.default_rng(seed)
    first, second = draw.choice(ids, 6), draw.choice(ids, 9)
    return [(prompt, draw.choice(ids, size)) for prompt, size in ((first, 5), (second, 7), (first, 3))]


def _attends_everywhere(hf: nn.Module) -> bool:
    """False where some layer sees a window or carries a state: an explicit mask would not be the layer's own."""
    config = getattr(hf, "config", None)
    kinds = set(getattr(config, "layer_types", None) or ())
    return kinds <= {"full_attention"} and getattr(config, "sliding_window", None) is None


def _output_linear(hf: nn.Module) -> nn.Linear:
    linear = hf.get_output_embeddings()  # type: ignore[operator]
    if type(linear) is not nn.Linear or hf.base_model is hf:
        raise TypeError(f"no plain linear head on a backbone (the head is {type(linear).__name__})")
    return linear


def _with_family(hf: nn.Module, options: HeadOptions) -> HeadOptions:
    """The options with the scale and the soft-cap that the model's configuration puts on its logits."""
    config = getattr(hf, "config", None)
    scale = float(getattr(config, "logit_scale", None) or 1.0) / float(getattr(config, "logits_scaling", None) or 1.0)
    softcap = getattr(config, "final_logit_softcapping", None)
    return replace(options, scale=scale, softcap=softcap)


def _logprobs(
    logits: torch.Tensor, targets: torch.Tensor, excluded: torch.Tensor, options: HeadOptions
) -> torch.Tensor:
    """Log-probabilities [N] from whole logits [N, V]: the safe path, with memory for all of them."""
    scaled = logits[:, : options.limit].float() / options.temperature
    if len(excluded):
        scaled = scaled.index_fill(1, excluded, float("-inf"))
    return scaled.gather(-1, targets[:, None])[:, 0] - scaled.logsumexp(-1)
