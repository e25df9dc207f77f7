"""Every prompt of a run in every member's own tokens, made and checked before anything is trained."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from population.errors import DataError
from population.prompts import Problem
from server.rollouts.tokenizer import MemberTokenizer

MAX_NAMED = 3
PromptIds = dict[int, tuple[int, ...]]


def encode_prompts(
    name: str, tokenizer: MemberTokenizer, problems: Iterable[Problem], *, max_tokens: int, positions: int | None
) -> PromptIds:
    """{prompt key: ids} for one member.

    ``max_tokens`` is rollouts.max_prompt_tokens, ``positions`` what the model leaves for a prompt beside the longest
    response, None when it sets no limit. DataError names the prompts that are longer, or that the chat template
    refuses.
    """
    limit = max_tokens if positions is None else min(max_tokens, positions)
    encoded: PromptIds = {}
    long: list[tuple[int, str]] = []
    for problem in problems:
        try:
            ids = tuple(tokenizer.encode_prompt(problem.prompt))
        except ValueError as error:
            raise DataError(f"member {name!r}: prompt {problem.prompt[:40]!r}: {error}") from None
        if len(ids) > limit:
            long.append((len(ids), problem.prompt))
        if not ids:
            raise DataError(
                f"member {name!r}: prompt {problem.prompt[:40]!r} has no tokens; its folder holds no usable tokenizer"
            )
        encoded[problem.key] = ids
    if long:
        named = "; ".join(f"{prompt[:40]!r} has {size}" for size, prompt in sorted(long, reverse=True)[:MAX_NAMED])
        remedy = (
            "raise rollouts.max_prompt_tokens or drop them"
            if limit == max_tokens
            else "lower rollouts.max_response_tokens or drop them: the model has no more positions"
        )
        raise DataError(f"member {name!r}: {len(long)} prompts have more than {limit} tokens: {named}; {remedy}")
    return encoded


def encode_for_all(
    tokenizers: Mapping[str, MemberTokenizer],
    positions: Mapping[str, int | None],
    problems: Iterable[Problem],
    *,
    max_prompt_tokens: int,
    max_response_tokens: int,
) -> dict[str, PromptIds]:
    """{member: {prompt key: ids}}; ``positions`` {member: the model's maximal length, or None}."""
    problems = list(problems)
    encoded = {}
    for name, tokenizer in tokenizers.items():
        whole = positions[name]
        room = None if whole is None else whole - max_response_tokens
        if room is not None and room < 1:
            raise DataError(
                f"member {name!r}: rollouts.max_response_tokens = {max_response_tokens} leaves no room for a prompt in "
                f"the model's {whole} positions; lower it"
            )
        encoded[name] = encode_prompts(name, tokenizer, problems, max_tokens=max_prompt_tokens, positions=room)
    return encoded
