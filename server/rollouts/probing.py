"""Which decoder a model can be trusted with: each is compared with the model's own forward before it is used."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from server.rollouts.decoders import (
    UNLIMITED,
    CachedDecoder,
    Decoder,
    RowDecoder,
    UncachedDecoder,
    accepted_arguments,
    attention_reach,
)
from server.rollouts.engine import EngineError
from server.rollouts.row_cache import use_row_attention

DecoderType = Callable[[PreTrainedModel], Decoder]

# Largest |difference| of a log-probability in float32; mean |difference| in half precision.
_TOLERANCE = 2e-4
_HALF_TOLERANCE = 0.05
# Below this size the probe works on a float32 copy whose weights are scaled up, so that errors cannot hide.
_COPY_PARAMETERS = 64_000_000
_PROMPT_LENGTHS = (5, 3, 7)
_ROWS = (0, 0, 1, 2, 2)
_STEPS = 6
# What a model's code raises when it is driven in a way it was not written for.
_FAULTS = (TypeError, ValueError, RuntimeError, IndexError, AttributeError, NotImplementedError)


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

    Where it is right to do so, the model's attention is switched to the faster `row_attention`.

    Raises:
        EngineError: not even full padded forwards give the model's own log-probabilities.
    """
    name = type(model).__name__
    trial = _Trial(model, known)
    reach = attention_reach(model)
    row_fault = _rows_fault(trial, reach)
    if row_fault is None and trial.row_attention and trial.subject is not model:
        use_row_attention(model)
    if row_fault is None and reach is not None and reach >= UNLIMITED:
        return Paths(RowDecoder, reach, RowDecoder, ())
    short, whole = (RowDecoder, reach) if row_fault is None and reach is not None else (None, 0)
    cached_fault = trial.fault_of(CachedDecoder)
    if cached_fault is None:
        note = f"{name}: sampled with the model's own cache, which is slower ({row_fault})"
        return Paths(short or CachedDecoder, whole, CachedDecoder, () if short else (note,))
    full_fault = trial.fault_of(UncachedDecoder)
    if full_fault is not None:
        raise EngineError(
            f"{name} cannot be sampled in batches: padding changes its log-probabilities ({full_fault}); "
            "choose another model, or serve this one with an external engine"
        )
    note = f"every token costs a full forward, because the model's cache cannot be batched ({cached_fault})"
    where = f"beyond {whole} tokens " if short else ""
    return Paths(short or UncachedDecoder, whole, UncachedDecoder, (f"{name}: {where}{note}",))


def _rows_fault(trial: _Trial, reach: int | None) -> str | None:
    """Why `RowDecoder` cannot be used; the trial is left with the attention that suits it."""
    if reach is None:
        return "it has layers that keep no keys and values"
    if reach < max(_PROMPT_LENGTHS) + _STEPS:
        return f"its attention window is only {reach} tokens"
    if "position_ids" not in accepted_arguments(trial.subject):
        return "its forward takes no position_ids"
    trial.row_attention = use_row_attention(trial.subject)
    fault = trial.fault_of(RowDecoder)
    if fault is not None and trial.row_attention:
        trial.subject.set_attn_implementation("sdpa")
        trial.row_attention = False
        fault = trial.fault_of(RowDecoder)
    return fault


class _Trial:
    """A model, random rows for it and the log-probabilities that a decoder has to reproduce."""

    def __init__(self, model: PreTrainedModel, known: Sequence[int]) -> None:
        self.subject = _conditioned(model)
        self.row_attention = False
        self.prompts, self.tokens = _random_rows(model, known)
        try:
            self.expected = _expected(self.subject, self.prompts, self.tokens)
        except _FAULTS as fault:
            raise EngineError(
                f"{type(model).__name__} cannot be sampled: its forward failed on random ids ({_line(fault)})"
            ) from fault

    def fault_of(self, kind: DecoderType) -> str | None:
        """Why a decoder does not reproduce the expected log-probabilities; None when it does."""
        try:
            worst, mean = self._gaps(kind)
        except _FAULTS as fault:
            return f"it failed: {_line(fault)}"
        if self.expected_exactly:
            return None if worst <= _TOLERANCE else f"log-probabilities are off by up to {worst:.2g}"
        return None if mean <= _HALF_TOLERANCE else f"log-probabilities are off by {mean:.2g} on average"

    @property
    def expected_exactly(self) -> bool:
        """True when the model computes in float32."""
        return self.subject.dtype == torch.float32

    def _gaps(self, kind: DecoderType) -> tuple[float, float]:
        """Largest and mean |difference|. Half-way a row leaves and another takes its place, as in sampling."""
        order = list(range(len(_ROWS)))
        gaps = []
        with torch.inference_mode():
            decoder = kind(self.subject)
            logits = decoder.start(self.prompts, self._index(_ROWS), _STEPS)
            for step in range(_STEPS + 1):
                gaps.append((logits.float().log_softmax(-1) - self.expected[step, order]).abs().nan_to_num(torch.inf))
                if step == _STEPS:
                    break
                if step == _STEPS // 2:
                    last = len(order) - 1
                    decoder.move(self._index([1]), self._index([last]), last)
                    order = [order[0], order[last], *order[2:last]]
                logits = decoder.step(self.tokens[step, order])
        return max(float(gap.max()) for gap in gaps), sum(float(gap.mean()) for gap in gaps) / len(gaps)

    def _index(self, rows: Sequence[int]) -> Tensor:
        return torch.tensor(rows, device=self.tokens.device)


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


def _line(fault: Exception) -> str:
    return f"{type(fault).__name__}: {str(fault).splitlines()[0] if str(fault) else ''}"[:200]
