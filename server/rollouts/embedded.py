"""The embedded engine: batched sampling with log-probabilities over any Hugging Face causal language model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from server.rollouts.decoders import Decoder
from server.rollouts.drawing import KnownIds, draw
from server.rollouts.engine import (
    EngineError,
    Sample,
    SamplingParams,
    TokenPrompt,
    check_prompts,
    trainable_tensors,
    weights_checksum,
)
from server.rollouts.probing import probe
from server.rollouts.randomness import stream_keys, uniforms
from server.rollouts.tokenizer import MemberTokenizer

# Positions whose uniforms are made at once.
_BLOCK = 64
# Finished rows leave the batch once they are this share of it: moving rows has a cost of its own.
_LEAVE_SHARE = 1 / 64


@dataclass(frozen=True)
class _Rows:
    """Raw samples of one batch: tokens and log-probabilities [rows, steps], of which `lengths` [rows] count."""

    tokens: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    lengths: NDArray[np.int64]
    finished: NDArray[np.bool_]


class EmbeddedEngine:
    """Samples in this process; implements `server.rollouts.engine.Engine`.

    The engine takes the model over: it is put into evaluation mode and its weights are overwritten by `load_weights`.
    A sample is a function of weights, prompt and (seed, step, member, purpose, prompt key, index). Other rows of the
    batch change its logits by rounding only (about 1e-6 in float32), so they change a token only where a uniform falls
    within that of a boundary.

    Args:
        model: any `...ForCausalLM`; its device and dtype are used.
        tokenizer: the member's tokenizer; ids it does not know are never sampled, every end id it names stops a row.
        weight_version: version of the weights the model comes with.
        max_batch_rows: rows computed at once; more samples go in several batches.

    Attributes:
        notes: what the user should know about how this model is sampled.

    Raises:
        EngineError: the model cannot be sampled rightly in batches.
        ValueError: `max_batch_rows` is not positive, or no output id is known to the tokenizer.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: MemberTokenizer, *, weight_version: int = 0, max_batch_rows: int = 256
    ) -> None:
        if max_batch_rows < 1:
            raise ValueError(f"max_batch_rows is {max_batch_rows}; it must be at least 1")
        self._model: PreTrainedModel | None = model.eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self.weight_version = weight_version
        self._max_rows = max_batch_rows
        text_config = model.config.get_text_config()
        self._embeddings = int(model.get_input_embeddings().weight.shape[0])
        self._positions: int | None = getattr(text_config, "max_position_embeddings", None)
        head = model.get_output_embeddings()
        outputs = int(text_config.vocab_size if head is None else head.weight.shape[0])
        known = tokenizer.known(outputs)
        self._known = KnownIds(torch.from_numpy(known).to(model.device))
        self._ends = np.zeros(outputs, dtype=np.bool_)
        self._ends[[i for i in tokenizer.end_ids if i < outputs]] = True
        self._weight_names: tuple[str, ...] = tuple(trainable_tensors(model))
        self._paths = probe(model, np.flatnonzero(known).tolist())
        self._home = model.device
        self._asleep = False
        self.notes: tuple[str, ...] = self._paths.notes

    @property
    def exact_logprobs(self) -> bool:
        """True in float32, where the log-probabilities equal the full forward's to about 1e-5."""
        return self._held().dtype == torch.float32

    def sample(self, prompts: Sequence[TokenPrompt], params: SamplingParams) -> list[list[Sample]]:
        """Samples [len(prompts)][params.n].

        Raises:
            EngineError: a prompt is empty, too long or has ids the model lacks; the model gave non-finite numbers.
        """
        model = self._held()
        if self._asleep:
            raise EngineError("the embedded engine sleeps: load_weights wakes it")
        check_prompts(prompts, params, self._embeddings, self._positions)
        # Prompts of like length share a batch, so that little is padded; no sample depends on this order.
        order = sorted(range(len(prompts)), key=lambda p: len(prompts[p].ids))
        rows = [(p, i) for p in order for i in range(params.n)]
        out: list[list[Sample]] = [[] for _ in prompts]
        with torch.inference_mode():
            for first in range(0, len(rows), self._max_rows):
                batch = rows[first : first + self._max_rows]
                raw = self._sample_rows(model, prompts, batch, params)
                for (p, _), sample in zip(batch, self._finish(prompts, batch, raw), strict=True):
                    out[p].append(sample)
        return out

    def load_weights(self, version: int, weights: Mapping[str, torch.Tensor]) -> str:
        """Copy weights in place and set the version; the checksum of what is held afterwards, by the names given.

        Raises:
            EngineError: a name is missing or unknown, or a shape or dtype differs; nothing has been copied then.
        """
        model = self._held()
        held: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        _check_weights(held, trainable_tensors(model), weights)
        if self._asleep:
            held = dict(model.to(self._home).state_dict(keep_vars=True))
            self._asleep = False
        with torch.no_grad():
            for name, tensor in weights.items():
                held[name].copy_(tensor)
        self.weight_version = version
        self._weight_names = tuple(weights)
        return self.checksum()

    def checksum(self) -> str:
        """SHA-256 of the weights held, over the names of the last `load_weights` (at first: every name once)."""
        held = self._held().state_dict()
        return weights_checksum({name: held[name] for name in self._weight_names})

    def sleep(self) -> None:
        """Move the model to CPU memory. Sampling raises EngineError until the next `load_weights`."""
        self._held().to("cpu")
        self._asleep = True
        if self._home.type == "cuda":
            torch.cuda.empty_cache()

    def drain_events(self) -> tuple[str, ...]:
        """Nothing: an engine in this process has nothing to mend."""
        return ()

    def close(self) -> None:
        """Let go of the model."""
        self._model = None

    def _held(self) -> PreTrainedModel:
        if self._model is None:
            raise EngineError("the embedded engine is closed")
        return self._model

    def _sample_rows(
        self,
        model: PreTrainedModel,
        prompts: Sequence[TokenPrompt],
        batch: list[tuple[int, int]],
        params: SamplingParams,
    ) -> _Rows:
        """One batch of rows, all started together; finished ones leave on the way."""
        needed = list(dict.fromkeys(p for p, _ in batch))
        place = {p: k for k, p in enumerate(needed)}
        prompt_of_row = torch.tensor([place[p] for p, _ in batch], device=model.device)
        unique = [prompts[p].ids for p in needed]
        decoder = self._paths.decoder(max(map(len, unique)) + params.max_new_tokens)(model)
        keys = stream_keys(params, [(prompts[p].key, i) for p, i in batch])
        logits = decoder.start(unique, prompt_of_row, params.max_new_tokens)
        return self._decode(decoder, logits, keys, params)

    def _decode(self, decoder: Decoder, logits: Tensor, keys: NDArray[np.uint64], params: SamplingParams) -> _Rows:
        count, steps = len(keys), params.max_new_tokens
        tokens = np.zeros((count, steps), dtype=np.int32)
        lengths = np.full(count, steps)
        finished = np.zeros(count, dtype=np.bool_)
        row_of_slot = np.arange(count)
        logprobs: list[Tensor] = []
        slots: list[NDArray[np.int64]] = []
        for step in range(steps):
            if step % _BLOCK == 0:
                block = uniforms(keys, step, min(_BLOCK, steps - step))
            uniform = torch.from_numpy(block[step % _BLOCK][row_of_slot]).to(logits.device)
            drawn, logprob = draw(self._known.restrict(logits), uniform, params)
            chosen = drawn.cpu().numpy()
            logprobs.append(logprob)
            slots.append(row_of_slot)
            tokens[row_of_slot, step] = chosen
            ended = self._ends[chosen]
            if ended.any():
                new = row_of_slot[ended]
                new = new[~finished[new]]
                lengths[new] = step + 1
                finished[new] = True
            if step + 1 == steps or finished.all():
                break
            gone = finished[row_of_slot]
            if gone.sum() >= max(1, len(gone) * _LEAVE_SHARE):
                row_of_slot, drawn = _leave(decoder, row_of_slot, gone, drawn)
            logits = decoder.step(drawn)
        return _Rows(tokens, _gathered(logprobs, slots, tokens.shape), lengths, finished)

    def _finish(self, prompts: Sequence[TokenPrompt], batch: list[tuple[int, int]], raw: _Rows) -> list[Sample]:
        texts = self._tokenizer.decode_many(
            [row[:length] for row, length in zip(raw.tokens.tolist(), raw.lengths.tolist(), strict=True)]
        )
        samples = []
        for row, (p, index) in enumerate(batch):
            length = int(raw.lengths[row])
            logprobs = raw.logprobs[row, :length].copy()
            if not np.isfinite(logprobs).all():
                raise EngineError(
                    f"prompt {prompts[p].key}: the model gave non-finite log-probabilities; weights of version "
                    f"{self.weight_version} are damaged or overflow in {self._held().dtype}"
                )
            samples.append(
                Sample(
                    prompt=prompts[p].key,
                    index=index,
                    ids=raw.tokens[row, :length].copy(),
                    logprobs=logprobs,
                    text=texts[row],
                    finish="stop" if raw.finished[row] else "length",
                    weight_version=self.weight_version,
                )
            )
        return samples


def _leave(
    decoder: Decoder, row_of_slot: NDArray[np.int64], gone: NDArray[np.bool_], drawn: Tensor
) -> tuple[NDArray[np.int64], Tensor]:
    """Let finished rows go: the last rows that stay move into the places of the first that go."""
    staying = len(gone) - int(gone.sum())
    holes = np.flatnonzero(gone[:staying])
    movers = staying + np.flatnonzero(~gone[staying:])
    order = np.arange(staying)
    order[holes] = movers
    device = drawn.device
    decoder.move(torch.from_numpy(holes).to(device), torch.from_numpy(movers).to(device), staying)
    return row_of_slot[order], drawn.index_select(0, torch.from_numpy(order).to(device))


def _gathered(logprobs: list[Tensor], slots: list[NDArray[np.int64]], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Log-probabilities kept by step and slot, as [rows, steps]; one transfer from the device for all of them."""
    out = np.zeros(shape, dtype=np.float32)
    steps = np.repeat(np.arange(len(slots)), [len(s) for s in slots])
    out[np.concatenate(slots), steps] = torch.cat(logprobs).cpu().numpy()
    return out


def _check_weights(held: Mapping[str, Tensor], required: Mapping[str, Tensor], given: Mapping[str, Tensor]) -> None:
    """Names, shapes and dtypes; tied names (one tensor under two names) may come once or, equal, several times."""
    unknown = sorted(set(given) - set(held))
    if unknown:
        raise EngineError(f"weights refused: the model has no {_some(unknown)}")
    parameters = {name: t for name, t in required.items() if isinstance(t, torch.nn.Parameter)}
    covered = {id(held[name]) for name in given}
    missing = sorted(name for name, tensor in parameters.items() if id(tensor) not in covered)
    if missing:
        raise EngineError(f"weights refused: {_some(missing)} missing")
    first: dict[int, str] = {}
    for name, tensor in given.items():
        own = held[name]
        if tensor.shape != own.shape:
            raise EngineError(f"weights refused: {name} has shape {tuple(tensor.shape)}, the model {tuple(own.shape)}")
        if tensor.dtype != own.dtype:
            raise EngineError(
                f"weights refused: {name} is {tensor.dtype}, the model {own.dtype}; use one dtype for both"
            )
        twin = first.setdefault(id(own), name)
        if twin != name and not torch.equal(tensor, given[twin].to(tensor.device)):
            raise EngineError(f"weights refused: {name} and {twin} are tied in the model but differ")


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
