"""Samples from one or several SGLang servers: ids out, ids and log-probabilities in, every answer checked.

One request is one sample, so that each has its own seed and request id, and one that fails is drawn again alone. The
server gets the ids that the tokenizer does not know with a bias that rules them out: its log-probabilities are then
those over the known ids, as the trainer computes them.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import httpx
import numpy as np
from numpy.typing import NDArray

from server.rollouts.engine import EngineError, FinishReason, SamplingParams, TokenPrompt, check_prompts
from server.rollouts.randomness import stream_keys
from server.rollouts.sglang_http import Exchange, ServerLost, sampling_client
from server.rollouts.tokenizer import MemberTokenizer

# How often one sample is drawn before the run is told that it cannot be had.
TRIES = 5
# Connections of one pool: httpx looks through all of them for every request, which takes longer than the request itself
# where they are many.
POOL = 4
# Finite, as JSON has no infinity; divided by any temperature it still makes a probability of exactly 0.
_NEVER = -1e30


@dataclass(frozen=True)
class Vocabulary:
    """What ids mean to a member. known [V] bool: those its tokenizer knows, of the V its model has rows for.

    ends: ids that end a response. positions: longest sequence, None when the model sets no limit.
    """

    known: NDArray[np.bool_]
    ends: frozenset[int]
    positions: int | None

    @classmethod
    def of(cls, model: Path, tokenizer: MemberTokenizer) -> Vocabulary:
        """Of a model folder. Raises EngineError where its configuration does not go with the tokenizer."""
        config = _text_config(model)
        size = config.get("vocab_size")
        if not isinstance(size, int):
            raise EngineError(f"{model / 'config.json'} names no vocab_size")
        known = tokenizer.known(size)
        if not known.any():
            raise EngineError(f"{model}: the tokenizer knows none of the model's ids; they do not belong together")
        positions = config.get("max_position_embeddings") or config.get("n_positions")
        ends = frozenset(token for token in tokenizer.end_ids if token < size)
        return cls(known, ends, int(positions) if positions else None)

    def check(self, prompts: Iterable[TokenPrompt], params: SamplingParams) -> None:
        """Raises EngineError for a prompt that must not be sent."""
        check_prompts(prompts, params, len(self.known), self.positions)

    @property
    def bias(self) -> dict[str, float]:
        """SGLang's `logit_bias` that rules out the ids without a text; empty where every id has one."""
        return {str(token): _NEVER for token in np.flatnonzero(~self.known)}


@dataclass(frozen=True)
class Span:
    """Output tokens start .. end - 1 come from weights of this label."""

    label: str
    start: int
    end: int


@dataclass(frozen=True)
class Drawn:
    """One sample as a server gave it: ids [T] int32, logprobs [T] float32, the weights behind each part."""

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    finish: FinishReason
    spans: tuple[Span, ...]


class Unusable(Exception):
    """An answer that is to be drawn again; the message says why."""


Row = tuple[int, int]
"""Which sample: the prompt's place in the request, and the index."""


class Terms(Protocol):
    """What the owner of the weights lets happen."""

    def admit(self) -> None:
        """Called before every request. Raises EngineError when nothing may be sampled now."""
        ...

    def accept(self, drawn: Drawn) -> None:
        """Raises Unusable for a sample that is to be drawn again, EngineError for one that must not be."""
        ...


class SamplingClient:
    """Draws over all servers of one member, the least loaded first."""

    def __init__(
        self,
        exchanges: Sequence[Exchange],
        vocabulary: Vocabulary,
        *,
        max_in_flight: int,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`max_in_flight`: samples asked of one server at a time. `transport`: in place of sockets (tests)."""
        self._exchanges = list(exchanges)
        self._vocabulary = vocabulary
        self._bias = vocabulary.bias
        self._max = max_in_flight
        self._transport = transport
        self._load = [0] * len(self._exchanges)
        self._given = [0] * len(self._exchanges)

    def draw(
        self,
        prompts: Sequence[TokenPrompt],
        rows: Iterable[Row],
        params: SamplingParams,
        *,
        terms: Terms,
        deadline_s: float,
        into: dict[Row, Drawn],
    ) -> None:
        """Draw the rows that `into` lacks and put them there, one by one as they arrive.

        Raises the first error that one request met, the others given up; `into` keeps what had arrived. ServerLost goes
        before other errors, since those may follow from it.
        """
        wanted = [row for row in rows if row not in into]
        asyncio.run(self._draw_all(prompts, wanted, params, terms, time.monotonic() + deadline_s, into))

    async def _draw_all(
        self,
        prompts: Sequence[TokenPrompt],
        rows: Sequence[Row],
        params: SamplingParams,
        terms: Terms,
        ends: float,
        into: dict[Row, Drawn],
    ) -> None:
        self._load = [0] * len(self._exchanges)
        connections = self._max * len(self._exchanges)
        free: asyncio.Queue[httpx.AsyncClient] = asyncio.Queue()
        async with AsyncExitStack() as stack:
            for first in range(0, connections, POOL):
                size = min(POOL, connections - first)
                client = await stack.enter_async_context(sampling_client(size, self._transport))
                for _ in range(size):
                    free.put_nowait(client)

            async def one(row: Row) -> None:
                client = await free.get()
                try:
                    into[row] = await self._draw(client, prompts[row[0]], row[1], params, terms, ends)
                finally:
                    free.put_nowait(client)

            try:
                async with asyncio.TaskGroup() as group:
                    for row in rows:
                        group.create_task(one(row))
            except* Exception as errors:
                faults = list(_flat(errors))
                raise next((fault for fault in faults if isinstance(fault, ServerLost)), faults[0]) from None

    async def _draw(
        self,
        client: httpx.AsyncClient,
        prompt: TokenPrompt,
        index: int,
        params: SamplingParams,
        terms: Terms,
        ends: float,
    ) -> Drawn:
        """One sample, drawn anew while the answer cannot be used."""
        reason = ""
        for attempt in range(TRIES):
            terms.admit()
            place = min(range(len(self._load)), key=lambda at: (self._load[at], self._given[at]))
            exchange = self._exchanges[place]
            where = f"prompt {prompt.key}, sample {index}, {exchange.server.url}"
            self._load[place] += 1
            self._given[place] += 1
            try:
                payload = self._payload(prompt, index, params, attempt)
                answer = await exchange.generate(client, payload, ends - time.monotonic())
            finally:
                self._load[place] -= 1
            try:
                drawn = read_answer(answer, self._vocabulary, where)
                terms.accept(drawn)
            except Unusable as error:
                reason = str(error)
            else:
                return drawn
        raise EngineError(f"prompt {prompt.key}, sample {index}: drawn {TRIES} times without a usable answer; {reason}")

    def _payload(self, prompt: TokenPrompt, index: int, params: SamplingParams, attempt: int) -> dict[str, Any]:
        """The request of one sample. A later attempt has another seed, or it would give the same answer again."""
        purpose = params if attempt == 0 else replace(params, purpose=f"{params.purpose}, attempt {attempt}")
        key = int(stream_keys(purpose, [(prompt.key, index)])[0])
        sampling: dict[str, Any] = {
            "max_new_tokens": params.max_new_tokens,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k or -1,
            "stop_token_ids": sorted(self._vocabulary.ends),
            # 63 bits: the server takes a signed number.
            "sampling_seed": key >> 1,
        }
        if self._bias:
            sampling["logit_bias"] = self._bias
        return {
            "rid": uuid.uuid4().hex,
            "input_ids": list(prompt.ids),
            "sampling_params": sampling,
            "return_logprob": True,
        }


def read_answer(answer: Any, vocabulary: Vocabulary, where: str) -> Drawn:
    """One sample from the answer to a request for one; what else the answer holds is left alone.

    Raises Unusable for an aborted one or one with an id that has no text, EngineError for one that is not whole.
    """
    try:
        meta: Mapping[str, Any] = answer["meta_info"]
        reason: Mapping[str, Any] = meta["finish_reason"]
        kind = str(reason["type"])
        if kind == "abort":
            raise Unusable(f"the server aborted it ({reason.get('message') or 'no reason given'})")
        ids = [int(token) for token in answer["output_ids"]]
        said = meta["output_token_logprobs"]
        logprobs = [math.nan if entry[0] is None else float(entry[0]) for entry in said]
        scored = [int(entry[1]) for entry in said]
        spans = _spans(meta, len(ids))
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise EngineError(
            f"{where}: not the answer of an SGLang server to a sample ({type(error).__name__}: {error})"
        ) from error
    if scored != ids or not ids:
        raise EngineError(f"{where}: {len(ids)} tokens came with log-probabilities of {len(scored)} others")
    if not all(map(math.isfinite, logprobs)):
        raise EngineError(f"{where}: non-finite log-probabilities; the server's weights are damaged or overflow")
    if kind not in ("stop", "length"):
        raise EngineError(f"{where}: ended with {kind!r}, which this client does not know")
    strange = [token for token in ids if not 0 <= token < len(vocabulary.known) or not vocabulary.known[token]]
    if strange:
        raise Unusable(f"it holds id {strange[0]}, for which the tokenizer has no text")
    # At the last allowed token the server says length, even if that token is an end token.
    ended = ids[-1] in vocabulary.ends or kind == "stop"
    return Drawn(
        np.array(ids, dtype=np.int32), np.array(logprobs, dtype=np.float32), "stop" if ended else "length", spans
    )


def end_ids_in(model: Path) -> tuple[int, ...]:
    """The end ids that a model's config.json names; a server ends at them whatever a request says."""
    found = _text_config(model).get("eos_token_id")
    if found is None:
        return ()
    return tuple(int(token) for token in found) if isinstance(found, list) else (int(found),)


def _text_config(model: Path) -> dict[str, Any]:
    try:
        config: dict[str, Any] = json.loads((model / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise EngineError(f"{model / 'config.json'} cannot be read ({error})") from error
    return {**config, **config.get("text_config", {})}


def _spans(meta: Mapping[str, Any], tokens: int) -> tuple[Span, ...]:
    """The weights behind each part; a server without spans names one version for all."""
    if not meta.get("weight_versions"):
        return (Span(str(meta["weight_version"]), 0, tokens),)
    spans = tuple(Span(str(s["version"]), int(s["start"]), int(s["end"])) for s in meta["weight_versions"])
    return tuple(span for span in spans if span.end > span.start)


def _flat(group: BaseExceptionGroup[Exception]) -> Iterable[Exception]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _flat(error)
        else:
            yield error
