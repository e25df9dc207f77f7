"""A member's tokenizer as the population sees it: text in and out without surprises, and every end token known."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A private-use character marks where the user's text goes in a rendered chat template.
_SLOT = "\ue0f0"


def end_ids_of(generation_config: Any) -> tuple[int, ...]:
    """The end tokens a generation configuration names (`eos_token_id` may be absent, one id or a list)."""
    ids = getattr(generation_config, "eos_token_id", None)
    if ids is None:
        return ()
    if isinstance(ids, int):
        return (ids,)
    return tuple(int(i) for i in ids)


class MemberTokenizer:
    """Wraps a Hugging Face tokenizer; implements `graft.retokenize.TextCodec`.

    Text that looks like a special token stays text, no space is cleaned up and nothing is added that was not asked for.

    Args:
        hf_tokenizer: a `PreTrainedTokenizerBase`.
        generation_end_ids: further ids that end a response (see `end_ids_of`); ids the tokenizer lacks are ignored,
            because they are never sampled.

    Raises:
        ValueError: there is no end token.
    """

    def __init__(self, hf_tokenizer: Any, *, generation_end_ids: Iterable[int] = ()) -> None:
        self.hf = hf_tokenizer
        self._ids = frozenset(int(i) for i in hf_tokenizer.get_vocab().values())
        named = [int(i) for i in generation_end_ids if int(i) in self._ids]
        own = hf_tokenizer.eos_token_id
        if own is None and not named:
            raise ValueError(
                f"tokenizer {_name(hf_tokenizer)!r} has no end token: set `eos_token` in its tokenizer_config.json, "
                "or name `eos_token_id` in the model's generation_config.json"
            )
        self.end_id: int = int(own) if own is not None else named[0]
        self.end_ids: frozenset[int] = frozenset([self.end_id, *named])

    @property
    def vocab_size(self) -> int:
        """Number of tokens, added ones included."""
        return len(self.hf)

    @property
    def id_limit(self) -> int:
        """One more than the largest id; equals `vocab_size` unless some ids below it are unused."""
        return max(self._ids) + 1

    def known(self, size: int) -> NDArray[np.bool_]:
        """Mask [size] of the ids of a model's output layer that this tokenizer can turn into text."""
        mask = np.zeros(size, dtype=np.bool_)
        mask[[i for i in self._ids if i < size]] = True
        return mask

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the serialised tokenizer and its end tokens: equal means ids can be exchanged."""
        return hashlib.sha256(f"{_serialised(self.hf)}\0{self.end_id}\0{sorted(self.end_ids)}".encode()).hexdigest()

    def encode_text(self, text: str) -> list[int]:
        """Ids of plain text: no begin or end token is added, and special tokens are not recognised in it."""
        ids = self._encode_plain(text)
        if text.startswith(" ") and self.decode(ids) != text:
            # Some SentencePiece tokenizers take a first space for the mark they put before every text themselves.
            wider = self._encode_plain(f" {text}")
            return wider if self.decode(wider) == text else ids
        return ids

    def _encode_plain(self, text: str) -> list[int]:
        ids = self.hf.encode(text, add_special_tokens=False, split_special_tokens=True)
        return [int(i) for i in ids]

    def decode(self, ids: Sequence[int] | NDArray[np.integer[Any]]) -> str:
        """Text of the ids, special tokens left out, spaces untouched."""
        return str(self.hf.decode([int(i) for i in ids], skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def decode_many(self, rows: Sequence[Sequence[int]]) -> list[str]:
        """`decode` for many responses at once."""
        backend = getattr(self.hf, "_tokenizer", None)
        if backend is not None and hasattr(backend, "decode_batch") and type(self.hf)._decode in _plain_decoders():
            return list(backend.decode_batch([list(row) for row in rows], skip_special_tokens=True))
        return [self.decode(row) for row in rows]

    def encode_prompt(self, text: str, *, system: str | None = None) -> list[int]:
        """Ids of a prompt: the chat template with one user message and the generation prompt, else begin token + text.

        Raises:
            ValueError: the chat template cannot take the messages.
        """
        if not getattr(self.hf, "chat_template", None):
            whole = text if not system else f"{system}\n\n{text}"
            begin = self.hf.bos_token_id
            return ([] if begin is None else [int(begin)]) + self.encode_text(whole)
        if not any(token and token in part for token in self._special_strings for part in (text, system or "")):
            return self._encode_marked(self._render(text, system))
        return self._encode_guarded(text, system)

    @cached_property
    def _special_strings(self) -> tuple[str, ...]:
        added = getattr(self.hf, "added_tokens_decoder", {})
        return tuple({*self.hf.all_special_tokens, *(t.content for t in added.values() if t.special)})

    def _render(self, user: str, system: str | None) -> str:
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": user})
        try:
            return str(self.hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))
        except Exception as fault:  # jinja raises whatever the template's author chose
            hint = "; leave the system text out or put it into the prompt" if system else ""
            raise ValueError(f"chat template of {_name(self.hf)!r} refused the prompt: {fault}{hint}") from fault

    def _encode_marked(self, rendered: str) -> list[int]:
        """Ids of template text, in which special tokens are meant."""
        ids = self.hf.encode(rendered, add_special_tokens=False, split_special_tokens=False)
        return [int(i) for i in ids]

    def _encode_guarded(self, text: str, system: str | None) -> list[int]:
        """Template pieces with special tokens, the texts between them without."""
        slots = {f"{_SLOT}user{_SLOT}": text, f"{_SLOT}system{_SLOT}": system or ""}
        user_slot, system_slot = slots
        rendered = self._render(user_slot, system_slot if system else None)
        ids: list[int] = []
        for slot in [system_slot, user_slot] if system else [user_slot]:
            before, found, rendered = rendered.partition(slot)
            if not found or slot in rendered:
                raise ValueError(
                    f"chat template of {_name(self.hf)!r} does not carry the messages through once and in order, so a "
                    "prompt that contains the text of a special token cannot be encoded safely; remove that text"
                )
            ids += self._encode_marked(before) + self.encode_text(slots[slot])
        return ids + self._encode_marked(rendered)


def _plain_decoders() -> tuple[Any, ...]:
    """`_decode` implementations that are the tokenizers library's decode and nothing more."""
    from transformers import PreTrainedTokenizerFast

    return (PreTrainedTokenizerFast._decode,)


def _name(hf_tokenizer: Any) -> str:
    return str(getattr(hf_tokenizer, "name_or_path", "") or type(hf_tokenizer).__name__)


def _serialised(hf_tokenizer: Any) -> str:
    backend = getattr(hf_tokenizer, "backend_tokenizer", None)
    if backend is not None and hasattr(backend, "to_str"):
        content = json.loads(backend.to_str())
        # Padding and truncation are call state, not part of how text becomes ids.
        content.pop("padding", None)
        content.pop("truncation", None)
    else:
        content = {"class": type(hf_tokenizer).__name__, "vocabulary": hf_tokenizer.get_vocab()}
    content["special"] = {key: str(value) for key, value in hf_tokenizer.special_tokens_map.items()}
    return json.dumps(content, sort_keys=True, ensure_ascii=False)
