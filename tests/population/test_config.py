"""The configuration is strict: what is not known, of the wrong type or inconsistent is refused by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from population.config import ConfigError, RunConfig, as_dict, as_recorded, differences, load, parse
from population.config import digest as digest_of

DEMO = Path("configs/demo.yaml")


def small(**changes: object) -> dict[str, object]:
    tree: dict[str, object] = {
        "name": "small",
        "steps": 3,
        "members": [{"name": "a", "model": "demo:qwen3"}, {"name": "b", "model": "demo:llama"}],
        "data": {"source": "demo:train", "prompts_per_step": 32},
    }
    return {**tree, **changes}


RECORDED = {"store": "sqlite:///old.db", "run": "old-1", "member": "b"}


def with_recorded(**keys: object) -> dict[str, object]:
    return {"members": [{"name": "a", "model": "demo:qwen3"}, {"name": "old", "source": RECORDED, **keys}]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"updates": {}}, "unknown key 'updates'; did you mean 'update'?"),
        ({"update": {"learning_rat": 1}}, "unknown key 'update.learning_rat'; did you mean 'learning_rate'?"),
        ({"update": {"lora": {"rnk": 4}}}, "unknown key 'update.lora.rnk'; did you mean 'rank'?"),
        ({"members": [{"name": "a", "modle": "x"}]}, "unknown key 'members.0.modle'; did you mean 'model'?"),
        (
            {"evaluation": {"benchmarks": [{"nam": "x"}]}},
            "unknown key 'evaluation.benchmarks.0.nam'; did you mean 'name'?",
        ),
        ({"update": {"learning_rate": "fast"}}, "update.learning_rate: Input should be a valid number"),
        ({"exchange": {"max_peer_share": 0}}, "exchange.max_peer_share: Input should be greater than 0"),
        ({"rollouts": {"temperature": float("inf")}}, "rollouts.temperature: Input should be a finite number"),
        ({"steps": 10**20}, "steps: Input should be less than"),
        ({"members": [{"name": "a"}]}, "member 'a' needs a model, or a source if it is a recorded one"),
        (
            with_recorded(learning_rate=1e-4),
            "member 'old' is recorded and not trained: leave out its training settings",
        ),
        (with_recorded(source={"stoer": "x"}), "unknown key 'members.1.source.stoer'; did you mean 'store'?"),
        (with_recorded(source={**RECORDED, "run": "latest"}), "give the run's uid"),
        (with_recorded(), "exchange.balance: circulation makes members give as much as they receive"),
        (
            {**with_recorded(), "exchange": {"balance": "none", "source_logprobs": "trainer"}},
            "exchange.source_logprobs: trainer would score the recorded member 'old' with its model",
        ),
        (
            {"members": [{"name": "a", "source": RECORDED}], "method": "grpo"},
            "members: all are recorded, none is trained",
        ),
        ({"method": "stored", "exchange": {"balance": "none"}}, "method 'stored' needs a recorded member"),
        (
            {"method": "graft-no-balance", "exchange": {"router": "scored"}},
            "exchange.router: scored measures which candidate is best, and method 'graft-no-balance' does not choose",
        ),
        (
            {"method": "graft-sgt", "exchange": {"router": "scored"}},
            "exchange.router: scored measures which candidate is best, and method 'graft-sgt' does not choose by that",
        ),
        ({"steps": "many"}, "steps: Input should be a valid integer"),
        ({"steps": None}, "give either steps or epochs"),
        ({"epochs": 2}, "give either steps or epochs"),
        ({"method": "graf"}, "there is no method 'graf'; did you mean 'graft'?"),
        ({"members": [{"name": "a", "model": "m"}]}, "needs at least two members"),
        ({"members": []}, "members: Tuple should have at least 1 item"),
        ({"members": [{"name": "a", "model": "m"}] * 2}, "two members are named 'a'"),
        ({"update": {"prompts_per_minibatch": 5}}, "5 does not divide data.prompts_per_step = 32"),
        ({"rollouts": {"top_p": 0.9}}, "rollouts.top_p: must be 1.0 for training"),
        ({"data": {"source": "x", "prompts_per_step": 4, "template": "say"}}, "must contain {prompt}"),
    ],
)
def test_a_bad_value_is_refused_in_one_line_that_names_the_key(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse(small(**changes), "x.yaml")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_one_member_alone_is_fine_without_exchange() -> None:
    assert parse(small(method="grpo", members=[{"name": "a", "model": "m"}])).method == "grpo"


@pytest.mark.parametrize("method", ["grpo", "graft", "graft-no-gate", "graft-random-prompts"])
def test_scored_values_suit_every_method_that_ranks_candidates_or_has_none(method: str) -> None:
    assert parse(small(method=method, exchange={"router": "scored"})).exchange.router == "scored"


def test_overrides_reach_sections_list_entries_by_name_and_by_index() -> None:
    config = load(
        DEMO,
        [
            "update.learning_rate=5e-4",
            "members.llama.learning_rate=1e-3",
            "members.0.model=demo:neox",
            "exchange.max_peer_share=0.5",
        ],
    )
    assert config.update.learning_rate == 5e-4
    assert config.members[1].learning_rate == 1e-3
    assert config.members[0].model == "demo:neox"
    assert config.exchange.max_peer_share == 0.5


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("update.lerning_rate=1", "did you mean 'learning_rate'?"),
        ("update.learning_rate", "expected key.path=value"),
        ("members.zoe.model=x", "no entry 'zoe'; there are: qwen3, llama, neox"),
        ("seed.more=1", "'seed' holds a value, not a section"),
        ("seed=[", "not valid YAML"),
    ],
)
def test_a_bad_override_is_refused(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=r"--set|demo\.yaml") as error:
        load(DEMO, [override])
    assert message in str(error.value)


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot read"):
        load(tmp_path / "nowhere.yaml")
    broken = tmp_path / "broken.yaml"
    broken.write_text("a: [1\nb: 2\n")
    with pytest.raises(ConfigError, match=r"broken\.yaml: not valid YAML at line 2"):
        load(broken)
    broken.write_text("- 1\n")
    with pytest.raises(ConfigError, match="expected keys and values"):
        load(broken)


@pytest.mark.parametrize("path", sorted(Path("configs").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_configuration_is_valid(path: Path) -> None:
    load(path)


def digest(config: RunConfig) -> str:
    return digest_of(as_dict(config))


def test_the_digest_ignores_length_and_places_but_nothing_that_decides_the_course() -> None:
    base = parse(small())
    assert digest(
        parse(small(steps=9, folder="elsewhere", store="sqlite:///x.db", checkpoint={"every_steps": 1}))
    ) == digest(base)
    assert digest(parse(small(seed=1))) != digest(base)
    assert digest(parse(small(exchange={"floor": 0.7}))) != digest(base)


def test_the_default_store_lies_in_the_folder_whatever_its_name() -> None:
    assert parse(small(folder="/a/r%41?x")).store_url == "sqlite:////a/r%2541%3Fx/graft.db"
    assert parse(small(store="sqlite:///x.db")).store_url == "sqlite:///x.db"


def test_what_is_recorded_has_no_password_and_another_password_is_no_other_course() -> None:
    def run(secret: str) -> RunConfig:
        url = f"postgresql+psycopg://me:{secret}@db.example:5432/graft"
        source = {"store": url, "run": "first", "member": "a"}
        members = [{"name": "a", "model": "demo:qwen3"}, {"name": "b", "source": source}]
        return parse(small(store=url, method="stored", members=members))

    tree = as_recorded(run("topsecret"))
    assert "topsecret" not in str(tree)
    bare = "postgresql+psycopg://me@db.example:5432/graft"
    assert (tree["store"], tree["members"][1]["source"]["store"]) == (bare, bare)
    assert run("topsecret").store_url.count("topsecret") == 1
    assert digest_of(tree) == digest_of(as_recorded(run("another")))
    assert as_recorded(parse(small()))["store"] is None


def test_differences_name_the_dotted_keys() -> None:
    first, second = parse(small()), parse(small(seed=3, exchange={"floor": 0.5}))
    assert differences(as_dict(first), as_dict(second)) == ["exchange.floor", "seed"]
