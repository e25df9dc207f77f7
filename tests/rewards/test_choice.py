"""Multiple choice and exact strings: what counts as settling on an option, and what does not."""

from __future__ import annotations

import pytest

from server.rewards.choice import letters, option_of, plain, score

PROMPT = "Which city is the capital of France?\n(A) Lyon\n(B) Paris\n(C) Nice\n(D) a town"


@pytest.mark.parametrize(
    "response",
    [
        r"It is \boxed{B}.",
        r"It is \boxed{(B)}",
        r"\boxed{\text{B}}",
        r"\boxed{\text{(B) Paris}}",
        r"First \boxed{A}, no: \boxed{B}",
        "Answer: B",
        "answer: (B)",
        "The answer is (B).",
        "The correct answer is B) Paris",
        "The answer is **B**",
        "The answer is $B$.",
        "The answer is B, because Lyon is not.",
        "The answer is (B) because (so to say) it is.",
        "The answer is b.",
        "The answer is option B.",
        "Final answer: B. Paris",
        "The answer is Paris.",
        r"\boxed{Paris}",
        "I think of Lyon (A), but then:\n(B)",
        "Thinking.\n\nB",
        "So it must be option B",
        "So I settle on (B) in the end",
        "**B**",
    ],
)
def test_these_settle_on_b(response: str) -> None:
    assert score(PROMPT, response, "B").reward == 1.0
    assert score(PROMPT, response, "(B)").reward == 1.0
    assert score(PROMPT, response, "C").reward == 0.0


@pytest.mark.parametrize(
    "response",
    [
        "",
        "I do not know",
        "The answer is A or B",
        r"\boxed{A, B}",
        "The answer is (A), or rather (B)",
        r"Surely \boxed{B} wait, \boxed{",
        r"\boxed{}",
        "Both (A) and (B) fit",
        "B is wrong",
        "Bees are insects",
        "The answer is Paris or Lyon",
    ],
)
def test_these_do_not(response: str) -> None:
    assert score(PROMPT, response, "B").reward == 0.0


def test_the_english_article_is_no_option() -> None:
    assert letters("a dog") == letters("A dog") == letters("I think so") == frozenset()
    assert score(PROMPT, "The answer is a town", "A").reward == 0.0
    assert score(PROMPT, "The answer is a town", "D").reward == 1.0


def test_several_options_must_be_the_same_set() -> None:
    assert score(PROMPT, "The answer is D and A", "A, D").reward == 1.0
    assert score(PROMPT, "The answer is A", "A, D").reward == 0.0
    assert score(PROMPT, "The answer is A, C and D", "A, D").reward == 0.0


@pytest.mark.parametrize(
    ("response", "answer", "reward"),
    [
        ("The answer is Marie  Curie.", "marie curie", 1.0),
        ("Answer: “Marie Curie”", "Marie Curie", 1.0),
        (r"\boxed{\text{Marie Curie}}", "Marie Curie", 1.0),
        ("Thinking about it.\nMarie Curie", "Marie Curie", 1.0),
        ("The answer is Pierre Curie", "Marie Curie", 0.0),
        ("The answer is Marie Curie and Pierre Curie", "Marie Curie", 0.0),
        ("Marie Curie is not it", "Marie Curie", 0.0),
        ("The answer is ﬁne", "fine", 1.0),
        ("The answer is yes", "Yes", 1.0),
    ],
)
def test_other_answers_are_met_word_for_word(response: str, answer: str, reward: float) -> None:
    assert score("", response, answer).reward == reward


def test_the_reason_says_what_was_chosen() -> None:
    assert score(PROMPT, r"\boxed{C}", "B").detail == "chose C"
    assert score(PROMPT, r"no idea", "B").detail == "chose no option"
    assert score(PROMPT, "The answer is London", "Paris").detail == "answered 'london'"
    assert "cut off" in score(PROMPT, r"\boxed{B", "B").detail


def test_options_are_read_from_the_prompt() -> None:
    assert option_of("Pick:\nA. red\nB. blue\nC. red", "Red.") == {"A", "C"}
    assert option_of("Pick one", "red") == frozenset()
    assert plain(r"  \text{A  B}. ") == "a b"


def test_an_empty_reference_answer_is_an_error() -> None:
    with pytest.raises(ValueError, match="reference answer is empty"):
        score(PROMPT, "B", " ")
