"""Which groups move between members (paper eq. 4, its generalisation to N members, and the rules it is compared with).

For `exchange` a candidate is (receiver, prompt, source) with k_receiver = 0 and 1 <= k_source < n_source. Its value is
k_source / n_source * g, g the edge's rate. At most one source serves a slot (receiver, prompt). Value ties break in an
order drawn from `seed`, so no member is favoured by its name, and the result does not depend on the order of any input.
For two members every balance mode but `none` is the paper's SelectWithTies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypedDict, TypeVar, Unpack

import numpy as np
from scipy.optimize import linear_sum_assignment

from graft.balance import (
    BALANCE_MODES,
    Balance,
    Mode,
    all_sources,
    best_sources,
    boundary_ties,
    portion,
    within_source_share,
)
from graft.candidates import Board, Candidates, Rule, attempted, complementary, find_candidates, rescuable

P = TypeVar("P", bound=Hashable)


class Options(TypedDict, Generic[P], total=False):
    """The keyword arguments that all rules take; `exchange` says what each means."""

    edge_rates: Mapping[tuple[str, str], float] | None
    balance: Balance
    ties: bool
    seed: int
    min_successes: int
    max_peer_share: float | None
    max_source_share: float | None
    receivers: Collection[str] | None
    values: Mapping[tuple[str, P, str], float] | None


@dataclass(frozen=True, slots=True)
class Transfer(Generic[P]):
    """The group of `source` on `prompt` goes to `receiver`. `tie`: joined at the boundary."""

    receiver: str
    prompt: P
    source: str
    value: float
    tie: bool = False


def select_with_ties(successes: Mapping[P, int], m: int) -> set[P]:
    """The paper's SelectWithTies: the m prompts of highest success count and all that tie with the last of them.

    `successes` is {prompt: k_source} over the candidates of one direction. m = 0 selects nothing.
    """
    if m < 0:
        raise ValueError(f"cannot select {m} prompts")
    if m == 0 or not successes:
        return set()
    lowest = sorted(successes.values(), reverse=True)[:m][-1]
    return {prompt for prompt, count in successes.items() if count >= lowest}


def exchange(
    successes: Mapping[str, Mapping[P, int]],
    attempts: Mapping[str, Mapping[P, int]],
    *,
    edge_rates: Mapping[tuple[str, str], float] | None = None,
    balance: Balance = "circulation",
    ties: bool = True,
    seed: int = 0,
    min_successes: int = 1,
    max_peer_share: float | None = None,
    max_source_share: float | None = None,
    receivers: Collection[str] | None = None,
    values: Mapping[tuple[str, P, str], float] | None = None,
) -> list[Transfer[P]]:
    """The transfers of one step, ordered by receiver, then by prompt as text.

    `successes` and `attempts` are {member: {prompt: k}} and {member: {prompt: n}}; a group absent from `attempts`
    (or with n = 0) takes no part. `edge_rates` {(receiver, source): g in (0, 1]}, 1 where missing. `values`
    {(receiver, prompt, source): v in [0, 1]} replaces k_source / n_source * g of those candidates.
    `balance`: `circulation`, every member gives as many groups as it receives, at the highest total value;
    `pairwise`, each two members give each other the same number; `receiver`, every member receives the same number;
    `none`, the best source for every slot. `ties`: candidates of a used edge with the same k as the lowest selected
    one join, unless their slot is taken.

    `receivers`: the only members that may receive; sources are not restricted by it (but under `circulation` and
    `pairwise` a member that receives nothing gives nothing). Guards, all off by default: `min_successes` of the
    source's group; `max_peer_share` of a receiver's attempted prompts that may be replaced; `max_source_share` of all
    transfers that may come from one source (reached by lowering every member's limit until it holds).
    Raises ValueError for counts, rates, values, shares or a mode that make no sense, naming them.
    """
    return _select(
        BALANCE_MODES,
        complementary,
        successes,
        attempts,
        edge_rates=edge_rates,
        balance=balance,
        ties=ties,
        seed=seed,
        min_successes=min_successes,
        max_peer_share=max_peer_share,
        max_source_share=max_source_share,
        receivers=receivers,
        values=values,
    )


def best_candidates(
    successes: Mapping[str, Mapping[P, int]],
    attempts: Mapping[str, Mapping[P, int]],
    *,
    per_slot: int,
    edge_rates: Mapping[tuple[str, str], float] | None = None,
    seed: int = 0,
    min_successes: int = 1,
    receivers: Collection[str] | None = None,
) -> list[Transfer[P]]:
    """The `per_slot` candidates of highest value for every slot (receiver, prompt) that `exchange` could fill.

    What may be scored beforehand, to be given to it as `values`. Arguments, order and errors as for `exchange`.
    """
    rng = np.random.default_rng(seed)
    board = Board(successes, attempts, rng)
    candidates = find_candidates(
        board,
        complementary,
        rng,
        edge_rates=edge_rates or {},
        values={},
        min_successes=min_successes,
        receivers=receivers,
    )
    taken: Counter[int] = Counter()
    chosen = []
    for index, slot in enumerate(candidates.slot.tolist()):
        taken[slot] += 1
        if taken[slot] <= per_slot:
            chosen.append(index)
    return _transfers(board, candidates, chosen, ())


def any_success(
    successes: Mapping[str, Mapping[P, int]], attempts: Mapping[str, Mapping[P, int]], **options: Unpack[Options[P]]
) -> list[Transfer[P]]:
    """The best source for every prompt with k_receiver = 0 and k_source >= 1, sources that solved everything included.

    Arguments, order and errors as for `exchange`. Every such prompt is served, which leaves nothing to `balance` and
    `ties`: they are not read.
    """
    return _serve_all(best_sources, rescuable, successes, attempts, options)


def every_success(
    successes: Mapping[str, Mapping[P, int]], attempts: Mapping[str, Mapping[P, int]], **options: Unpack[Options[P]]
) -> list[Transfer[P]]:
    """As `any_success`, but all such sources of a prompt, not only the best: one transfer for each (SGT).

    `max_peer_share` counts prompts, `max_source_share` transfers.
    """
    return _serve_all(all_sources, rescuable, successes, attempts, options)


def everyone(
    successes: Mapping[str, Mapping[P, int]], attempts: Mapping[str, Mapping[P, int]], **options: Unpack[Options[P]]
) -> list[Transfer[P]]:
    """Every prompt of every receiver from every other member that attempted it, whatever the rewards (HACPO).

    As `every_success` otherwise, except that `min_successes` is not read: a group without a success is wanted too.
    """
    options["min_successes"] = 0
    return _serve_all(all_sources, attempted, successes, attempts, options)


def random_prompts(
    successes: Mapping[str, Mapping[P, int]], attempts: Mapping[str, Mapping[P, int]], **options: Unpack[Options[P]]
) -> list[Transfer[P]]:
    """As many prompts per edge as `exchange` takes, drawn uniformly from those both members attempted.

    Whatever the rewards: a receiver's group that was not lost may be replaced, by one in which nothing was solved. A
    receiver's prompts are distinct over its edges. Arguments, order and errors as for `exchange`.
    """
    edges = Counter((t.receiver, t.source) for t in exchange(successes, attempts, **options))
    seed, rates = options.get("seed", 0), options.get("edge_rates") or {}
    rng = np.random.default_rng([seed, 1])  # not the draws that ordered the prompts for `exchange`
    prompts = sorted({prompt for counts in attempts.values() for prompt in counts}, key=str)
    transfers = []
    for receiver in sorted({receiver for receiver, _ in edges}):
        sources = [source for (to, source), count in sorted(edges.items()) if to == receiver for _ in range(count)]
        both = [[min(attempts[m].get(q, 0) for m in (receiver, source)) > 0 for q in prompts] for source in sources]
        # Independent costs make every assignment equally likely; what exchange chose shows that one is possible.
        costs = np.where(both, rng.random((len(sources), len(prompts))), 2.0 * len(prompts))
        for source, column in zip(sources, linear_sum_assignment(costs)[1], strict=True):
            prompt = prompts[column]
            value = successes[source][prompt] / attempts[source][prompt] * rates.get((receiver, source), 1.0)
            transfers.append(Transfer(receiver, prompt, source, value))
    return sorted(transfers, key=_receiver_then_prompt)


def hold_out(
    transfers: Sequence[Transfer[P]], share: float, *, seed: int
) -> tuple[list[Transfer[P]], list[Transfer[P]]]:
    """Split selected transfers at random into (grafted, held out), each held out with probability `share`.

    The held-out ones are the control group that uptake is measured against. Both keep the order of `transfers`.
    """
    if not 0.0 <= share < 1.0:
        raise ValueError(f"the held-out share must lie in [0, 1), got {share}")
    held = np.random.default_rng(seed).random(len(transfers)) < share
    grafted = [transfer for transfer, out in zip(transfers, held, strict=True) if not out]
    return grafted, [transfer for transfer, out in zip(transfers, held, strict=True) if out]


def _serve_all(
    mode: Mode,
    rule: Rule,
    successes: Mapping[str, Mapping[P, int]],
    attempts: Mapping[str, Mapping[P, int]],
    options: Options[P],
) -> list[Transfer[P]]:
    """Every slot that the rule finds, within the guards: nothing is left to balance or to tie."""
    options["ties"] = False
    return _select(dict.fromkeys(BALANCE_MODES, mode), rule, successes, attempts, **options)


def _select(
    modes: Mapping[Balance, Mode],
    rule: Rule,
    successes: Mapping[str, Mapping[P, int]],
    attempts: Mapping[str, Mapping[P, int]],
    *,
    edge_rates: Mapping[tuple[str, str], float] | None = None,
    balance: Balance = "none",
    ties: bool = True,
    seed: int = 0,
    min_successes: int = 1,
    max_peer_share: float | None = None,
    max_source_share: float | None = None,
    receivers: Collection[str] | None = None,
    values: Mapping[tuple[str, P, str], float] | None = None,
) -> list[Transfer[P]]:
    """What the mode picks among the rule's candidates, within the guards; see `exchange`."""
    if balance not in modes:
        raise ValueError(f"balance must be one of {', '.join(modes)}, got {balance!r}")
    for name, share in (("max_peer_share", max_peer_share), ("max_source_share", max_source_share)):
        if share is not None and not 0.0 < share <= 1.0:
            raise ValueError(f"{name} must lie in (0, 1], got {share}")
    rng = np.random.default_rng(seed)
    board = Board(successes, attempts, rng)
    candidates = find_candidates(
        board,
        rule,
        rng,
        edge_rates=edge_rates or {},
        values=values or {},
        min_successes=min_successes,
        receivers=receivers,
    )
    caps = board.attempted if max_peer_share is None else portion(max_peer_share, board.attempted)
    chosen = within_source_share(modes[balance], candidates, caps, max_source_share)
    tied = boundary_ties(candidates, chosen, caps, max_source_share) if ties else []
    return _transfers(board, candidates, chosen, tied)


def _transfers(
    board: Board[P], candidates: Candidates, chosen: Iterable[int], tied: Iterable[int]
) -> list[Transfer[P]]:
    transfers = [
        Transfer(
            receiver=board.members[candidates.receiver[index]],
            prompt=board.prompts[candidates.prompt[index]],
            source=board.members[candidates.source[index]],
            value=float(candidates.value[index]),
            tie=tie,
        )
        for indices, tie in ((chosen, False), (tied, True))
        for index in indices
    ]
    return sorted(transfers, key=_receiver_then_prompt)


def _receiver_then_prompt(transfer: Transfer[P]) -> tuple[str, str, str]:
    return transfer.receiver, str(transfer.prompt), transfer.source
