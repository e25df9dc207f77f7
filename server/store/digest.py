"""What makes two records of a step the same: everything but clock readings and remarks."""

from __future__ import annotations

import hashlib
import math
import struct
from typing import Any

import numpy as np

from server.store.records import GroupRecord, StepRecord, TransferRecord

_TIMING_PREFIXES = ("seconds_", "step_seconds", "gpu_seconds", "idle_", "tokens_per_second")


def is_timing(metric: str) -> bool:
    """Whether a metric reads a clock, so that it differs when the same step is done again."""
    return metric.startswith(_TIMING_PREFIXES)


def content_digest(step: StepRecord) -> bytes:
    """SHA-256 of a step's content; the order of groups, transfers and metrics, timings and events do not enter."""
    digest = hashlib.sha256()
    _text(digest, f"step {step.step}")
    for prompt in sorted(step.prompts, key=lambda prompt: prompt.key):
        _text(digest, f"prompt {prompt.key}", prompt.text, prompt.answer)
    for group in sorted(step.groups, key=lambda group: (group.member, group.prompt)):
        _group(digest, group)
    for transfer in sorted(step.transfers, key=lambda one: (one.receiver, one.prompt, one.source)):
        _transfer(digest, transfer)
    for metric in sorted(step.metrics, key=lambda metric: (metric.member or "", metric.name)):
        if not is_timing(metric.name):
            _text(digest, f"metric {metric.member}", metric.name)
            _numbers(digest, metric.numerator, metric.denominator)
    return digest.digest()


def _text(digest: Any, *parts: str) -> None:
    for part in parts:
        encoded = part.encode("utf-8", "surrogatepass")
        digest.update(len(encoded).to_bytes(8, "little"))
        digest.update(encoded)


def _numbers(digest: Any, *values: float | None) -> None:
    """None and every NaN have one form each, whatever their bits."""
    for value in values:
        digest.update(b"none" if value is None else b"nan" if math.isnan(value) else struct.pack("<d", value))


def _group(digest: Any, group: GroupRecord) -> None:
    _text(digest, f"group {group.prompt} {len(group.responses)}", group.member)
    for response in group.responses:
        _text(
            digest,
            response.text,
            f"{float(response.reward)!r} {float(response.advantage)!r} {response.verdict} {response.finish} "
            f"{response.weight_version} {response.token_ids.size}",
        )
        digest.update(np.ascontiguousarray(response.token_ids, np.int32))
        digest.update(np.ascontiguousarray(response.logprobs, np.float32))


def _transfer(digest: Any, transfer: TransferRecord) -> None:
    _text(digest, f"transfer {transfer.prompt} {transfer.tie} {transfer.held_out}", transfer.receiver, transfer.source)
    _numbers(digest, transfer.value)
    for grafted in transfer.responses:
        _text(digest, f"{grafted.index} {grafted.refusal} {grafted.receiver_tokens} {grafted.source_tokens}")
        _numbers(digest, grafted.s, grafted.weight, grafted.receiver_logprob, grafted.source_logprob)
