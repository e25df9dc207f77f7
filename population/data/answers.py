r"""The reference answer inside a field: the field as it is, the last \boxed{} of a solution, or what follows ####."""

from __future__ import annotations

import re

from server.rewards.extract import find_answer

_GROUPED_NUMBER = re.compile(r"-?\$?\d{1,3}(,\d{3})+(\.\d+)?%?")


def reference_answer(text: str, answer_format: str) -> str | None:
    """The answer in a field's text, None where the format finds none; ``answer_format`` as in the configuration."""
    if answer_format == "boxed":
        return find_answer(text) if "box" in text else None
    if answer_format == "hashes":
        _, mark, answer = text.rpartition("####")
        answer = answer.strip()
        if _GROUPED_NUMBER.fullmatch(answer):
            answer = answer.replace(",", "")
        return answer or None if mark else None
    return text
