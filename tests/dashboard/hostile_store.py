"""A store whose every text column tries to be more than text: HTML, Markdown, LaTeX, control and reordering characters,
a megabyte in one piece.

`MARK` is in each of them, so that a test can tell whether what it looks at came from the store.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from server.store.records import (
    EvaluationRecord,
    EventRecord,
    GroupRecord,
    MetricRecord,
    PromptRecord,
    RunRecord,
    StepRecord,
    TransferRecord,
)
from server.store.writer import open_writer
from tests.dashboard.showcase import Showcase

MARK = "evil"
HTML = (
    '<script>window.pwned = 1</script><img src="https://evil.invalid/i.png" onerror="window.pwned = 1">'
    '<a href="https://evil.invalid/a">evil</a><style>body{display:none}</style><iframe src="//evil.invalid"></iframe>'
    "<svg onload=window.pwned=1>"
)
MARKDOWN = (
    "\n# evil heading\n![x](https://evil.invalid/m.png) [evil](javascript:window.pwned=1) <https://evil.invalid/l> "
    "https://evil.invalid/bare www.evil.invalid evil@evil.invalid :material/home: :smile: :red[evil] :red-badge[evil]\n"
    "> evil quote\n\n| evil | table |\n|---|---|\n| a | b |\n\n```evil\ncode\n```\n- [ ] evil task\n[r]: https://evil.invalid/r\n"
    "![r][r]\n    indented"
)
LATEX = (
    r"$\href{https://evil.invalid/h}{evil}$ $\includegraphics{https://evil.invalid/g.png}$ \(\url{https://evil.invalid}\)"
    r" $$\htmlData{x=1}{\htmlStyle{position:fixed}{evil}}$$ $\def\x{\x\x}\x$ $\rule{9999em}{9999em}$"
    r" \[\class{evil}{x}\] \boxed{evil \boxed{ $\unicode{x202e}$ $\color{red evil $$ $"
)
CONTROL = "\x01\x07\x08\x1b[31mevil\x7f\x85\u200b\u200e\u202eevil\u2066evil\ufeff"
HOSTILE = f"{HTML} {MARKDOWN} {LATEX} {CONTROL}"
LONG = "evil " * 200_000

NAMES = (f"a/{HTML}", f"b {MARKDOWN}{LATEX}", f"c {CONTROL}" + "x" * 300, "evil,'\";--={}[]&?#%2e\n| d")


def hostile_run(uid: str = "hostile") -> RunRecord:
    """The run's record: hostile name, method, members and configuration."""
    run = Showcase(members=NAMES, steps=6, uid=uid).run()
    config: dict[str, Any] = {
        **run.config,
        "name": HOSTILE,
        HOSTILE: {HOSTILE: HOSTILE},
        "exchange": {"floor": 0.8, "normaliser": HOSTILE, "balance": HOSTILE},
        "evaluation": {"benchmarks": [{"name": HOSTILE, "source": HOSTILE}]},
        "password": "hunter2",
        "long": LONG,
        "list": [HOSTILE, None, 1e400, [HOSTILE]],
    }
    members = tuple(replace(member, model=HOSTILE, family=HOSTILE) for member in run.members)
    return replace(run, name=HOSTILE, method=f"graft {HOSTILE}", members=members, config=config)


def _prompt(prompt: PromptRecord) -> PromptRecord:
    return replace(
        prompt,
        text=f"{prompt.text} {HOSTILE}",
        answer=f"{prompt.answer} {HOSTILE}",
        dataset=HOSTILE,
        subject=f"{prompt.subject} {HOSTILE}",
    )


def _group(group: GroupRecord, long: bool) -> GroupRecord:
    responses = [replace(one, text=f"{one.text}\n{HOSTILE}\ud800", finish=HOSTILE) for one in group.responses]
    if long:
        responses[0] = replace(responses[0], text=responses[0].text + LONG)
    return replace(group, responses=tuple(responses))


def _transfer(transfer: TransferRecord) -> TransferRecord:
    responses = [replace(one, refusal=HOSTILE, weight=0.0) if one.refusal else one for one in transfer.responses]
    return replace(transfer, responses=tuple(responses))


def hostile_step(scenario: Showcase, step: int) -> StepRecord:
    """One step of the showcase with every text made hostile; each member's first group has a megabyte in it."""
    made = scenario.step(step)
    return replace(
        made,
        prompts=tuple(map(_prompt, made.prompts)),
        groups=tuple(_group(group, place % scenario.prompts == 0) for place, group in enumerate(made.groups)),
        transfers=tuple(map(_transfer, made.transfers)),
        metrics=(*made.metrics, MetricRecord(None, HOSTILE, 1.0), MetricRecord(NAMES[0], HOSTILE, float("nan"))),
        events=tuple(_events(step)),
    )


def _events(step: int) -> Iterator[EventRecord]:
    for level in ("info", "warning", "error"):
        yield EventRecord(level, HOSTILE, NAMES[1], step)  # type: ignore[arg-type]
    yield EventRecord("warning", LONG, None, step)


def write_hostile(url: str, uid: str = "hostile") -> str:
    """Write the run, failed with a hostile message; the store's URL."""
    scenario = Showcase(members=NAMES, steps=6, prompts=6, uid=uid, mark=" evil")
    with open_writer(url) as writer:
        writer.start_run(hostile_run(uid))
        for step in range(1, 5):
            writer.commit(hostile_step(scenario, step))
        for step in (2, 4):
            for name in NAMES:
                rows = tuple((key.key, step % 3, 4) for key in scenario.step(1).prompts)
                writer.record_evaluation(EvaluationRecord(name, HOSTILE, step, rows, 0.6, 0))
                writer.record_evaluation(EvaluationRecord(name, f"b {HOSTILE}", step, rows, 0.6, 0))
        writer.event(EventRecord("error", HOSTILE))
        writer.finish("failed", HOSTILE)
    return url
