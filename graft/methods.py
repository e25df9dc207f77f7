"""METHODS: each method as a pair (which groups move, how the update uses them).

Both axes are independent: a further row of the paper's tables is one more entry here, made of a `Which` and a `How`. A
row may also fix settings of the run, by their dotted configuration keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, Unpack

from graft.admission import Admit, everything, gate, gated_successes, one_success, random_admission
from graft.advantages import AdvantageRule, capability_weighted, imitated, pooled, separate
from graft.losses import (
    TokenLoss,
    clipped_ratio,
    negative_log_likelihood,
    sequence_clip,
    sequence_ratio,
    shaped,
)
from graft.minibatches import Position
from graft.selection import (
    Options,
    Transfer,
    any_success,
    every_success,
    everyone,
    exchange,
    random_prompts,
)

Setting = str | int | float | bool


class Which(Protocol):
    """Chooses the groups that move, from {member: {prompt: k}} and {member: {prompt: n}}; see `graft.selection`."""

    def __call__(
        self,
        successes: Mapping[str, Mapping[int, int]],
        attempts: Mapping[str, Mapping[int, int]],
        **options: Unpack[Options[int]],
    ) -> list[Transfer[int]]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How the receiver's update uses own groups and transferred ones.

    `admit`: which transferred responses take part, and at which weight. `advantages`: how own and peer rewards of a
    prompt share a baseline. `own_loss`, `peer_loss`: terms of own and transferred tokens. `replaces`: a transferred
    group takes the failed one's place; otherwise both are trained on. `position`: where prompts with a transferred
    group stand in the order of minibatches (None: prompts keep the batch order). `shared_denominator`: one for own and
    peer terms; otherwise each is divided by its own. `coefficient` multiplies the peer term. `needs_capability`: the
    advantages read the members' capability ratios. `description` and `equation` are for people.
    """

    admit: Admit
    advantages: AdvantageRule
    own_loss: TokenLoss
    peer_loss: TokenLoss
    replaces: bool
    position: Position | None
    shared_denominator: bool = True
    coefficient: float = 1.0
    needs_capability: bool = False
    description: str
    equation: str


@dataclass(frozen=True, slots=True)
class Method:
    """One row of the paper's tables. `which` is None for a method without exchange.

    `settings` {dotted configuration key: value}: what the row fixes besides the pair.
    """

    name: str
    which: Which | None
    how: How
    settings: Mapping[str, Setting] = field(default_factory=dict)
    description: str = field(kw_only=True)

    @property
    def exchanges(self) -> bool:
        """True when members give each other groups, so that the method needs at least two of them."""
        return self.which is not None


OWN_ONLY = How(
    admit=everything,
    advantages=separate,
    own_loss=clipped_ratio,
    peer_loss=clipped_ratio,
    replaces=True,
    position=None,
    description="own groups only",
    equation="J = 1/sum|o| sum_j sum_t min(rho a, clip(rho, 1-e_low, 1+e_high) a)",
)
GATED = How(
    admit=gate,
    advantages=separate,
    own_loss=clipped_ratio,
    peer_loss=clipped_ratio,
    replaces=True,
    position="last",
    description="gated by compatibility, advantages of the source's group, clipped, peers last",
    equation="J as for own groups, each response times w = 1[s > floor] min(s, 1); s <= floor leaves the batch",
)
UNGATED = replace(
    GATED,
    admit=everything,
    description="every transferred response at full weight, advantages of the source's group, clipped, peers last",
    equation="J as for own groups, w = 1",
)
SEQUENCE_RATIO = replace(
    GATED,
    own_loss=sequence_ratio,
    peer_loss=sequence_ratio,
    description="as graft, with one ratio per response, own ones too",
    equation="J as for graft with exp(mean_t log rho_t) in the place of every rho_t",
)
RANDOMLY_ADMITTED = replace(
    GATED,
    admit=random_admission,
    description="as graft, but as many responses as pass the floor are drawn at random from all",
    equation="J as for graft, w = 1[drawn] min(s, 1)",
)
PEER_FIRST = replace(GATED, position="first", description="as graft, peers first")
PEER_UNIFORM = replace(GATED, position="uniform", description="as graft, the order of minibatches drawn anew each step")
POOLED = replace(
    GATED,
    advantages=pooled,
    replaces=False,
    description="as graft, but the failed group stays at weight 1 and both share one baseline",
    equation="J as for graft over both groups, a_i = (r_i - mean) / (std + 1e-6) over the rewards of both",
)
SUCCESS_ONLY = replace(
    GATED,
    admit=gated_successes,
    description="as graft, but of a source's group only the correct responses stay, with their advantages",
    equation="J as for graft, w = 1[s > floor] 1[r > 0] min(s, 1)",
)
SHAPED = replace(
    UNGATED,
    peer_loss=shaped,
    description="LUFFY's policy shaping on peer tokens, without gate and clip; peers last",
    equation="peer tokens: f(pi) a with f(x) = x / (x + 0.1)",
)
IMITATED = replace(
    OWN_ONLY,
    admit=one_success,
    advantages=imitated,
    peer_loss=negative_log_likelihood,
    replaces=False,
    shared_denominator=False,
    coefficient=0.1,
    description="own groups as in GRPO, and the likelihood of one correct peer response per prompt",
    equation="J = J_grpo + 0.1 mean_t log pi(o_t) over the tokens of the drawn peer responses",
)
CAPABILITY_WEIGHTED = How(
    admit=everything,
    advantages=capability_weighted,
    own_loss=sequence_ratio,
    peer_loss=sequence_clip,
    replaces=False,
    position=None,
    needs_capability=True,
    description="all members' groups share one baseline, weighted by capability; sequence ratios",
    equation="own: min(s a, clip(s) a); peers: c sg[c] omega(j,k) a with c = clip(s, 0.8 + 0.025 u, 1), "
    "a = (r - mean(omega(k,j) r)) / (std + 1e-6)",
)
CAPABILITY_WEIGHTED_PEERS = replace(
    CAPABILITY_WEIGHTED,
    own_loss=clipped_ratio,
    description="HACPO's baseline and peer term on the transferred prompts, own tokens clipped as in GRPO",
    equation="own: min(rho a, clip(rho) a); peers: c sg[c] omega(j,k) a with c = clip(s, 0.8 + 0.025 u, 1), "
    "a = (r - mean(omega(k,j) r)) / (std + 1e-6)",
)

_UNBALANCED: Mapping[str, Setting] = {"exchange.balance": "none"}
_HACPO: Mapping[str, Setting] = {
    "update.clip_low": 3e-4,
    "update.clip_high": 4e-4,
    "update.aggregation": "seq-mean-token-mean",
    "update.kl_coefficient": 1e-3,
}


def _grpo(name: str, settings: Mapping[str, Setting], description: str) -> Method:
    return Method(name, None, OWN_ONLY, settings, description=description)


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _grpo("grpo", {}, "every member by itself"),
        _grpo("grpo-16", {"rollouts.rollouts_per_prompt": 16}, "every member by itself, 16 responses per prompt"),
        _grpo("grpo-32", {"rollouts.rollouts_per_prompt": 32}, "every member by itself, 32 responses per prompt"),
        _grpo(
            "grpo-dynamic",
            {"rollouts.dynamic_sampling": True},
            "every member by itself; groups without variance are sampled anew from further prompts",
        ),
        Method("graft", exchange, GATED, description="the paper's method"),
        Method("graft-no-gate", exchange, UNGATED, description="graft without the gate"),
        Method("graft-no-floor", exchange, GATED, {"exchange.floor": 0.0}, description="graft that refuses nothing"),
        Method("graft-floor-0.7", exchange, GATED, {"exchange.floor": 0.7}, description="graft with a lower floor"),
        Method("graft-floor-0.9", exchange, GATED, {"exchange.floor": 0.9}, description="graft with a higher floor"),
        Method(
            "graft-no-balance",
            any_success,
            GATED,
            _UNBALANCED,
            description="graft for every lost prompt that a peer solved at least once, however one-sided",
        ),
        Method("graft-no-token-ratio", exchange, SEQUENCE_RATIO, description="graft with one ratio per response"),
        Method("graft-random-prompts", random_prompts, GATED, description="graft on as many prompts drawn at random"),
        Method("graft-random-admission", exchange, RANDOMLY_ADMITTED, description="graft with the gate's count alone"),
        Method("graft-peer-first", exchange, PEER_FIRST, description="graft with peer minibatches first"),
        Method("graft-peer-uniform", exchange, PEER_UNIFORM, description="graft with minibatches in random order"),
        Method("graft-pooled", exchange, POOLED, description="graft that keeps the lost group, with a common baseline"),
        Method("graft-success-only", exchange, SUCCESS_ONLY, description="graft of correct responses alone"),
        Method(
            "graft-success-only-no-floor",
            exchange,
            SUCCESS_ONLY,
            {"exchange.floor": 0.0},
            description="graft of correct responses alone, whatever their compatibility",
        ),
        Method("graft-luffy", exchange, SHAPED, description="graft's groups under LUFFY's update"),
        Method("sgt", every_success, IMITATED, _UNBALANCED, description="success-guided imitation of peers"),
        Method("graft-sgt", exchange, IMITATED, description="graft's groups under SGT's update"),
        Method("hacpo", everyone, CAPABILITY_WEIGHTED, {**_UNBALANCED, **_HACPO}, description="all share all rollouts"),
        Method("graft-hacpo", exchange, CAPABILITY_WEIGHTED_PEERS, description="graft's groups, HACPO's peer term"),
        Method("stored", exchange, GATED, _UNBALANCED, description="graft from a recorded partner, one way"),
    )
}
