"""A step is stored wholly, once, and faithfully; what cannot be stored is refused by name."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from server.store.digest import content_digest
from server.store.reader import open_reader
from server.store.records import (
    EvaluationRecord,
    EventRecord,
    MetricRecord,
    PromptRecord,
    StepConflict,
    StepRecord,
    StoreError,
    TransferRecord,
)
from server.store.schema import ORDINAL_BITS, RUN_BITS, STEP_BITS, group_id
from server.store.writer import Writer, open_writer
from tests.store.audit import audit
from tests.store.backends import raw
from tests.store.synthetic import Scenario

SCENARIO = Scenario(steps=6, prompts=6, n=4)


def _dump(url: str) -> dict[str, list[str]]:
    with raw(url) as database:
        return database.dump()


def test_a_step_again_with_the_same_content_changes_nothing(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    assert writer.last_step is None
    assert writer.commit(SCENARIO.step(1))
    before = _dump(url)
    assert not writer.commit(SCENARIO.step(1))
    assert _dump(url) == before
    assert writer.last_step == 1


def test_clock_readings_remarks_and_order_are_not_content(writer: Writer) -> None:
    writer.start_run(SCENARIO.run())
    step = SCENARIO.step(1)
    writer.commit(step)
    slower = tuple(
        replace(metric, numerator=metric.numerator * 2)
        if metric.name.startswith(("seconds_", "step_seconds", "tokens_per_second"))
        else metric
        for metric in step.metrics
    )
    again = replace(
        step,
        metrics=slower[::-1],
        groups=step.groups[::-1],
        transfers=step.transfers[::-1],
        events=(EventRecord("info", "x"),),
    )
    assert slower != step.metrics
    assert not writer.commit(again)


def test_any_other_content_of_a_committed_step_is_refused_and_the_rows_stay(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    step = SCENARIO.step(1)
    writer.commit(step)
    group, response = step.groups[0], step.groups[0].responses[0]
    ids = response.token_ids.copy()
    ids[0] += 1
    logprobs = response.logprobs.copy()
    logprobs[-1] = np.nextafter(logprobs[-1], np.float32(0))
    before = _dump(url)
    others = [replace(response, token_ids=ids), replace(response, logprobs=logprobs), replace(response, text="?")]
    others += [replace(response, advantage=response.advantage + 1e-12), replace(response, weight_version=9)]
    changed = [
        replace(step, groups=(replace(group, responses=(other, *group.responses[1:])), *step.groups[1:]))
        for other in others
    ]
    changed.append(replace(step, transfers=step.transfers[1:]))
    changed.append(replace(step, metrics=step.metrics[1:]))
    for other_step in changed:
        with pytest.raises(StepConflict, match="already recorded with other content"):
            writer.commit(other_step)
    assert _dump(url) == before
    assert audit(url) == []


def test_a_gap_is_refused_and_names_the_step_that_is_due(writer: Writer) -> None:
    writer.start_run(SCENARIO.run())
    writer.commit(SCENARIO.step(1))
    with pytest.raises(StoreError, match="commit step 2"):
        writer.commit(SCENARIO.step(3))


def test_a_metric_that_is_no_number_is_missing_and_counted_and_spoils_no_mean(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    for step, loss in enumerate((2.0, math.nan, math.inf, 4.0), start=1):
        writer.commit(replace(SCENARIO.step(step), metrics=(MetricRecord(SCENARIO.names[0], "loss", loss, 2.0),)))
    with open_reader(url) as reader:
        numerator, denominator = reader.metric("latest", "loss", 1, 4)
        assert (numerator[0], denominator[0]) == (6.0, 4.0)
        _, _, recorded, not_finite = reader.metric_buckets("latest", ["loss"], [0, 4])["loss"]
        assert (recorded[0, 0], not_finite[0, 0]) == (2, 2)
        assert (recorded[0, 1], not_finite[0, 1]) == (0, 0)
        steps, series, _ = reader.metric_series("latest", "loss", 1, 4)
        assert steps.tolist() == [1, 2, 3, 4]
        assert np.isnan(series[:, 0]).tolist() == [False, True, True, False]
    assert audit(url) == []


def test_a_window_after_a_spike_is_exact(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    for step, norm in enumerate((1e25, 0.5, 0.25), start=1):
        writer.commit(replace(SCENARIO.step(step), metrics=(MetricRecord(None, "grad_norm", norm, 1.0),)))
    with open_reader(url) as reader:
        assert reader.run_metric("latest", "grad_norm", 2, 3) == (0.75, 2.0)


def test_prompts_are_shared_by_runs(url: str) -> None:
    for uid in ("one", "two"):
        with open_writer(url) as writer:
            writer.start_run(replace(SCENARIO.run(), uid=uid))
            writer.commit(SCENARIO.step(1))
            writer.finish("finished")
    with open_reader(url) as reader:
        size = reader.size()
        assert (size["runs"], size["groups"], size["prompts"]) == (2, 2 * 3 * 6, 6)
        assert [run.uid for run in reader.runs()] == ["two", "one"]
        assert reader.run("latest").uid == "two"
    assert audit(url) == []


def test_a_prompt_key_with_another_text_is_refused(writer: Writer) -> None:
    writer.start_run(SCENARIO.run())
    step = SCENARIO.step(1)
    writer.record_prompts([step.prompts[0]])
    other = replace(step.prompts[1], key=step.prompts[0].key)
    with pytest.raises(StoreError, match="use another store"):
        Writer.record_prompts(_fresh(writer), [other])


def _fresh(writer: Writer) -> Writer:
    """The same writer as after a restart, when it has seen no prompt yet."""
    writer._known_prompts.clear()
    return writer


def test_ids_fit_in_53_bits() -> None:
    largest = group_id((1 << RUN_BITS) - 1, (1 << STEP_BITS) - 1, (1 << ORDINAL_BITS) - 1)
    assert largest == (1 << 53) - 1
    assert group_id(1, 2, 3) < group_id(1, 3, 0) < group_id(2, 0, 0)


def _third(transfer: TransferRecord) -> str:
    return next(name for name in SCENARIO.names if name not in (transfer.receiver, transfer.source))


def _broken_steps() -> dict[str, StepRecord]:
    step = SCENARIO.step(1)
    group, transfer = step.groups[0], next(one for one in step.transfers if one.responses)
    response = replace(group.responses[0], logprobs=np.zeros(1, np.float32))
    return {
        "no member 'nobody'": replace(step, groups=(replace(group, member="nobody"), *step.groups[1:])),
        "is there twice": replace(step, groups=(group, *step.groups)),
        "no responses": replace(step, groups=(replace(group, responses=()), *step.groups[1:])),
        "1 log-probabilities": replace(step, groups=(replace(group, responses=(response,)), *step.groups[1:])),
        "lack this key": replace(step, prompts=step.prompts[1:]),
        "receives from itself": replace(step, transfers=(replace(transfer, source=transfer.receiver),)),
        "held out, yet": replace(step, transfers=(replace(transfer, held_out=True),)),
        "transfer": replace(step, transfers=(transfer, transfer)),
        "held out for one source and not for another": replace(
            step,
            transfers=(transfer, replace(transfer, source=_third(transfer), held_out=True, responses=())),
        ),
        "response 0 is there twice": replace(
            step, transfers=(replace(transfer, responses=(transfer.responses[0], transfer.responses[0])),)
        ),
        "metric": replace(step, metrics=(step.metrics[0], step.metrics[0])),
        "steps are 1 to": replace(step, step=0),
    }


@pytest.mark.parametrize("message", sorted(_broken_steps()))
def test_a_record_that_contradicts_itself_is_refused_by_name(writer: Writer, message: str, url: str) -> None:
    writer.start_run(SCENARIO.run())
    with pytest.raises(StoreError, match=message):
        writer.commit(_broken_steps()[message])
    assert writer.commit(SCENARIO.step(1))
    assert audit(url) == []


def test_run_names_and_members_are_checked(writer: Writer) -> None:
    run = SCENARIO.run()
    with pytest.raises(StoreError, match="uid"):
        writer.start_run(replace(run, uid="../elsewhere"))
    with pytest.raises(StoreError, match="is there twice"):
        writer.start_run(replace(run, members=(run.members[0], run.members[0])))
    with pytest.raises(StoreError, match="0 members"):
        writer.start_run(replace(run, members=()))
    with pytest.raises(StoreError, match="call start_run or resume_run first"):
        writer.commit(SCENARIO.step(1))
    writer.start_run(run)
    writer.finish("finished")
    with pytest.raises(StoreError, match="already has run"):
        writer.start_run(run)


def test_text_no_database_takes_is_stored_without_what_it_cannot_hold(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    step = SCENARIO.step(1)
    prompt = replace(step.prompts[0], text="zero \0 and lone \ud800 surrogate")
    response = replace(step.groups[0].responses[0], text="zero \0 and lone \ud800 surrogate, 🙂")
    group = replace(step.groups[0], responses=(response, *step.groups[0].responses[1:]))
    event = EventRecord("error", "zero \0 and lone \udfff here")
    writer.commit(replace(step, prompts=(prompt, *step.prompts[1:]), groups=(group, *step.groups[1:]), events=(event,)))
    with open_reader(url) as reader:
        assert reader.prompts([prompt.key])[prompt.key].text == "zero  and lone ? surrogate"
        assert reader.trajectory("latest", 1, group.prompt, group.member).own.responses[0].text == (
            "zero \0 and lone ? surrogate, 🙂"
        )
        assert reader.events("latest")[0].message == "zero  and lone ? here"


def test_members_need_not_attempt_the_same_prompts(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    step = SCENARIO.step(1)
    writer.commit(replace(step, groups=step.groups[:8], transfers=()))
    writer.commit(StepRecord(2, (), ()))
    assert audit(url) == []
    with open_reader(url) as reader:
        assert reader.member_counts("latest", 1, 2)["groups"].tolist() == [6, 2, 0]
        assert sum(count for _, count in reader.patterns("latest", 1, 2)[0]) == 6


def test_the_digest_does_not_depend_on_the_types_numbers_came_in() -> None:
    step = SCENARIO.step(1)
    response = step.groups[0].responses[0]
    wide = replace(response, token_ids=response.token_ids.astype(np.int64), reward=np.float64(response.reward))
    group = replace(step.groups[0], responses=(wide, *step.groups[0].responses[1:]))
    assert content_digest(replace(step, groups=(group, *step.groups[1:]))) == content_digest(step)


def test_an_evaluation_again_replaces_and_another_seed_is_pooled(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    name = SCENARIO.names[1]
    first = EvaluationRecord(name, "held-out", 0, ((1, 4, 4), (2, 0, 4)), 0.6, seed=0)
    for record in (
        replace(first, problems=((1, 1, 4), (3, 1, 4))), first, replace(first, seed=1, problems=((1, 2, 4), (2, 2, 4)))
    ):  # fmt: skip
        writer.record_evaluation(record)
    with pytest.raises(StoreError, match="temperature"):
        writer.record_evaluation(replace(first, seed=2, temperature=1.0))
    with pytest.raises(StoreError, match="5 right of 4"):
        writer.record_evaluation(replace(first, problems=((1, 5, 4),)))
    with open_reader(url) as reader:
        (summary,) = reader.evaluations("latest")
        assert (summary.mean, summary.problems, summary.responses, summary.seeds) == (0.5, 2, 16, 2)
        assert 0 <= summary.low < 0.5 < summary.high <= 1
        keys, correct, responses = reader.evaluation_problems("latest", "held-out", 0, name)
        assert (keys.tolist(), correct.tolist(), responses.tolist()) == ([1, 2], [6, 2], [8, 8])


def test_a_transfer_whose_value_is_no_number_is_read_back_as_none_known(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    step = SCENARIO.step(1)
    group, peer = step.groups[0], SCENARIO.names[1]
    writer.commit(replace(step, transfers=(TransferRecord(group.member, peer, group.prompt, math.nan, False, True),)))
    with open_reader(url) as reader:
        peer = reader.trajectory("latest", 1, group.prompt, group.member).peer()
    assert peer is not None
    assert math.isnan(peer.transfer.value)


def test_prompts_recorded_outside_a_step_can_be_looked_up(writer: Writer, url: str) -> None:
    writer.start_run(SCENARIO.run())
    prompts = [PromptRecord(number, f"problem {number}", "1", "benchmark") for number in range(1200)]
    writer.record_prompts(prompts)
    writer.record_prompts(prompts)
    with open_reader(url) as reader:
        assert reader.prompts([prompt.key for prompt in prompts]) == {prompt.key: prompt for prompt in prompts}
        assert reader.prompts([5, 10_000]).keys() == {5}
