"""Named prompt templates: what a data set's ``template`` may say instead of a text with ``{prompt}``."""

from __future__ import annotations

import difflib

PLACE = "{prompt}"

# The paper says what its suffix asks for, not its words; `boxed` is verl's wording for MATH, `boxed-qwen` Qwen's.
TEMPLATES = {
    "plain": "{prompt}",
    "boxed": r"{prompt} Let's think step by step and output the final answer within \boxed{}.",
    "boxed-qwen": "{prompt}\nPlease reason step by step, and put your final answer within \\boxed{}.",
    "answer-tags": "{prompt}\nThink step by step, then give the final answer between <answer> and </answer>.",
}


def template_text(template: str) -> str:
    """The text of a template given by name or as text. ValueError for a text without a place and no known name."""
    if template in TEMPLATES:
        return TEMPLATES[template]
    if PLACE in template:
        return template
    near = difflib.get_close_matches(template, TEMPLATES, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"or be one of {', '.join(TEMPLATES)}"
    raise ValueError(f"must contain {PLACE}, the place of the problem text; {hint}")
