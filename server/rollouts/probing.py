"""Which decoder a model can be trusted with: each is compared with the model's own forward before it is used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from server.rollouts.decoders import (
    CachedDecoder,
    Decoder,
    RowDecoder,
    UncachedDecoder,
    accepted_arguments,
    attention_reach,
)
from server.rollouts.engine import EngineError

DecoderType = Callable[[PreTrainedModel], Decoder]

# Largest |difference| of a log-probability in float32; mean |difference| in half precision.
_TOLERANCE = 2e-4
_HALF_TOLERANCE = 0.05
# Below this size the probe works on a float32 copy whose weights are scaled up, so that errors cannot hide.
_COPY_PARAMETERS = 64_000_000
_PROMPT_LENGTHS = (5, 3, 7)
_ROWS = (0, 0, 1, 2, 2)
_STEPS = 6


@dataclass(frozen=True)
class Paths:
    """The decoder for rows up to `reach` tokens, the one for longer rows, and what is to be said about the choice."""

    short: DecoderType
    reach: int
    long: DecoderType
    notes: tuple[str, ...]

    def decoder(self, tokens: int) -> DecoderType:
        """The decoder for rows of at most `tokens` tokens, prompt and response together."""
        return self.short if tokens <= self.reach else self.long


def probe(model: PreTrainedModel, known: Sequence[int]) -> Paths:
    """Try the decoders on random known ids and keep the fastest that equals the model's own unpadded forward.

    Raises:
        EngineError: not even full padded forwards give the model's own log-probabilities.
    """
    name = type(model).__name__
    subject = _conditioned(model)
    prompts, tokens = _random_rows(model, known)
    try:
        expected = _expected(subject, prompts, tokens)
    except (TypeError, ValueError, RuntimeError, IndexError) as fault:
        raise EngineError(f"{name} cannot be sampled: its forward failed on random ids ({_line(fault)})") from fault

    def fault_of(kind: DecoderType) -> str | None:
        return _fault(kind, subject, prompts, tokens, expected)

    reach = attention_reach(model)
    row_fault = "it has layers without keys and values" if reach is None else fault_of(RowDecoder)
    if "position_ids" not in accepted_arguments(model):
        row_fault = "its forward takes no position_ids"
    if row_fault is None and reach is not None and reach >= 1 << 60:
        return Paths(RowDecoder, reach, RowDecoder, ())
    cached_fault = fault_of(CachedDecoder)
    if cached_fault is None:
        if row_fault is None and reach is not None:
            return Paths(RowDecoder, reach, CachedDecoder, ())
        note = f"{name}: sampled with the model's own cache, which is slower ({row_fault})"
        return Paths(CachedDecoder, 0, CachedDecoder, (note,))
    full_fault = fault_of(UncachedDecoder)
    if full_fault is not None:
        raise EngineError(
            f"{name} cannot be sampled in batches: padding changes its log-probabilities ({full_fault}); "
            "choose another model, or serve this one with an external engine"
        )
    note = f"{name}: every token costs a full forward, because its cache cannot be batched ({cached_fault})"
    if row_fault is None and reach is not None:
        return Paths(RowDecoder, reach, UncachedDecoder, (f"beyond {reach} tokens, {note}",))
    return Paths(UncachedDecoder, 0, UncachedDecoder, (note,))


def _conditioned(model: PreTrainedModel) -> PreTrainedModel:
    """A float32 copy with matrices of at least unit gain: near-zero weights would make every decoder look right."""
    if sum(p.numel() for p in model.parameters()) > _COPY_PARAMETERS:
        return model
    twin = copy.deepcopy(model).float().eval()
    with torch.no_grad():
        for parameter in twin.parameters():
            if parameter.ndim >= 2:
                spread = float(parameter.std())
                wanted = parameter.shape[-1] ** -0.5
                if 0.0 < spread < wanted:
                    parameter.mul_(wanted / spread)
    return twin


def _random_rows(model: PreTrainedModel, known: Sequence[int]) -> tuple[list[list[int]], Tensor]:
    """Prompts, and the tokens [steps, rows] that are forced behind them."""
    generator = torch.Generator().manual_seed(20260728)
    ids = torch.tensor(known)

    def some(*shape: int) -> Tensor:
        return ids[torch.randint(0, len(ids), shape, generator=generator)]

    return [some(length).tolist() for length in _PROMPT_LENGTHS], some(_STEPS, len(_ROWS)).to(model.device)


def _expected(model: PreTrainedModel, prompts: list[list[int]], tokens: Tensor) -> Tensor:
    """Log-probabilities [steps + 1, rows, V] by unpadded forwards of one row each."""
    rows = []
    with torch.inference_mode():
        for row, prompt in enumerate(_ROWS):
            ids = torch.cat([torch.tensor(prompts[prompt], device=tokens.device), tokens[:, row]])
            logits = model(input_ids=ids[None], use_cache=False).logits[0, len(prompts[prompt]) - 1 :]
            rows.append(logits.float().log_softmax(-1))
    return torch.stack(rows, dim=1)


def _fault(
    kind: DecoderType, model: PreTrainedModel, prompts: list[list[int]], tokens: Tensor, expected: Tensor
) -> str | None:
    """Why a decoder does not reproduce `expected`; None when it does. Half-way a row leaves, as finished rows do."""
    order = list(range(len(_ROWS)))
    worst = total = 0.0
    try:
        with torch.inference_mode():
            decoder = kind(model)
            logits = decoder.start(prompts, torch.tensor(_ROWS, device=tokens.device), _STEPS)
            for step in range(_STEPS + 1):
                gap = (logits.float().log_softmax(-1) - expected[step, order]).abs()
                worst, total = max(worst, float(gap.max())), total + float(gap.mean())
                if step == _STEPS:
                    break
                if step == _STEPS // 2:
                    last = len(order) - 1
                    decoder.move(_index([1], tokens), _index([last], tokens), last)
                    order = [order[0], order[last], *order[2:last]]
                logits = decoder.step(tokens[step, order])
    except (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError) as fault:
        return f"it failed: {_line(fault)}"
    if next(model.parameters()).dtype == torch.float32:
        return None if worst <= _TOLERANCE else f"log-probabilities are off by up to {worst:.2g}"
    mean = total / (_STEPS + 1)
    return None if mean <= _HALF_TOLERANCE else f"log-probabilities are off by {mean:.2g} on average"


def _index(rows: list[int], like: Tensor) -> Tensor:
    return torch.tensor(rows, device=like.device)


def _line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
