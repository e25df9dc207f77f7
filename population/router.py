"""Routing: the step's success counts and the edge rates -> which group goes to whom (METHOD part 2).

The router owns what is remembered between steps about an edge source -> receiver: g, the running mean weight that the
receiver's gate gave to the source's responses. It turns the value of a candidate into its expected share of useful
successes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from graft.admission import one_success
from graft.compatibility import updated_edge_rate
from graft.methods import Method
from graft.selection import Transfer, best_candidates, hold_out
from population.config import ExchangeConfig
from population.success_graph import StepCounts

# Candidates per failed group whose value is measured instead of estimated, with exchange.router: scored.
SCORED_CANDIDATES = 2


@dataclass(frozen=True)
class Routing:
    """The transfers of a step, and those of them drawn as controls: selected and recorded, but not grafted."""

    transfers: tuple[Transfer, ...]
    held_out: frozenset[tuple[str, int]]

    @property
    def grafted(self) -> list[Transfer]:
        """The transfers that are carried out."""
        return [transfer for transfer in self.transfers if (transfer.receiver, transfer.prompt) not in self.held_out]


class Router:
    """Chooses sources for all-fail groups; keeps the edge rates g[receiver, source], which start at 1."""

    def __init__(
        self, method: Method, settings: ExchangeConfig, seed: int, receivers: Collection[str] | None = None
    ) -> None:
        """``receivers``: the only members that may receive, None for all."""
        self._method = method
        self._settings = settings
        self._seed = seed
        self._receivers = receivers
        self.edge_rates: dict[tuple[str, str], float] = {}
        self._gone: set[str] = set()

    def to_score(self, step: int, counts: StepCounts) -> list[Transfer]:
        """The candidates whose value is to be measured: the best by estimate of every slot, if the router scores."""
        settings = self._settings
        if settings.router == "estimated" or self._method.which is None:
            return []
        return best_candidates(
            counts.successes,
            counts.attempts,
            per_slot=SCORED_CANDIDATES,
            edge_rates=self.edge_rates,
            seed=keyed_seed(self._seed, step, "route"),
            min_successes=settings.min_successes,
            receivers=self._receivers,
        )

    def route(
        self, step: int, counts: StepCounts, values: Mapping[tuple[str, int, str], float] | None = None
    ) -> Routing:
        """Select the step's transfers and draw the controls. Empty for a method without exchange.

        ``values`` {(receiver, prompt, source): v} of the candidates that were scored; the others' are estimated.
        """
        if self._method.which is None:
            return Routing((), frozenset())
        settings = self._settings
        transfers = self._method.which(
            counts.successes,
            counts.attempts,
            edge_rates=self.edge_rates,
            balance=settings.balance,
            ties=settings.ties,
            seed=keyed_seed(self._seed, step, "route"),
            min_successes=settings.min_successes,
            max_peer_share=settings.max_peer_share,
            max_source_share=settings.max_source_share,
            receivers=self._receivers,
            values=values,
        )
        # Drawn by slot: several sources of one failed group are grafted together or not at all.
        slots = list({(t.receiver, t.prompt): t for t in transfers}.values())
        _, held = hold_out(slots, settings.holdout, seed=keyed_seed(self._seed, step, "holdout"))
        return Routing(tuple(transfers), frozenset((t.receiver, t.prompt) for t in held))

    def observe(self, weights: Mapping[tuple[str, str], Iterable[float]]) -> None:
        """Update g of every edge (receiver, source) used in the step from the weights of its responses (dropped =
        0). Not where one success of a slot is drawn: 1/n would then tell of the draw, and punish the edges in use.
        """
        if self._method.how.admit is one_success:
            return
        decay = self._settings.edge_rate_decay
        for edge, values in weights.items():
            if self._gone & {*edge}:
                continue
            mean = float(np.mean(list(values)))
            self.edge_rates[edge] = updated_edge_rate(self.edge_rates.get(edge, 1.0), mean, decay=decay)

    def forget(self, member: str) -> None:
        """The member is no longer of the run, and its edges are not either."""
        self._gone.add(member)
        self.edge_rates = {edge: rate for edge, rate in self.edge_rates.items() if member not in edge}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"edge_rates": [[receiver, source, rate] for (receiver, source), rate in self.edge_rates.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over the state of a checkpoint."""
        self.edge_rates = {(receiver, source): rate for receiver, source, rate in state["edge_rates"]}


def keyed_seed(seed: int, step: int, purpose: str) -> int:
    """One 63-bit seed per (run seed, step, purpose), so that a step replays alone."""
    words = np.random.SeedSequence([seed, step, *purpose.encode()]).generate_state(1, np.uint64)
    return int(words[0] >> np.uint64(1))
