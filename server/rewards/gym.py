r"""The reward of reasoning-gym problems: the generator's own scorer, full marks or nothing.

The final answer of a response is what stands between the last <answer> and </answer>, else its \boxed{} or "the answer
is ..." as for mathematics.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from server.rewards.extract import find_answer

_TEXT = re.compile(r"\\text\{([^{}]*)\}")


def score(prompt: str, response: str, answer: str) -> float:
    """1.0 where the generator gives a response full marks, else 0.0: partial credit would hide failed groups.

    answer: JSON {"generator", "answer", "metadata"} as :mod:`population.data.gym` writes it. Raises ValueError for
    another text, and ImportError without reasoning-gym.
    """
    try:
        reference = json.loads(answer)
        generator, gold, metadata = reference["generator"], reference["answer"], reference["metadata"]
    except (ValueError, KeyError, TypeError):
        raise ValueError("the reference answer is not one of a gym: data set; check data.reward") from None
    given = final_answer(response)
    if given is None:
        return 0.0
    entry = {"question": prompt, "answer": gold, "metadata": metadata}
    return 1.0 if _scorer(generator)(given, entry) >= 1.0 else 0.0


def final_answer(response: str) -> str | None:
    """The answer a response ends with, None where it gives none or its last tag is not closed."""
    opened = response.rfind("<answer>")
    if opened >= 0:
        closed = response.find("</answer>", opened)
        return response[opened + len("<answer>") : closed].strip() or None if closed >= 0 else None
    found = find_answer(response)
    if found is None:
        return None
    whole = _TEXT.fullmatch(found)
    return whole.group(1) if whole else found


@cache
def _scorer(generator: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym import get_score_answer_fn

    return get_score_answer_fn(generator)
