"""What one member sampled for one prompt: responses, and the group they form."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Response:
    """One sampled response.

    `ids` [T] are the sampled token ids, with the end token when the response ended by itself. `text` is their decoding
    without special tokens. `logprobs` [T], in nats, are the engine's at the sampling temperature, one per id.
    `finished` is True when the response ended by itself (finish reason "stop") and False when it was cut off.
    """

    ids: NDArray[np.int32]
    text: str
    logprobs: NDArray[np.float32]
    finished: bool
    weight_version: int

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.logprobs):
            raise ValueError(
                f"a response needs one log-prob per token id: {len(self.ids)} ids, {len(self.logprobs)} log-probs"
            )


@dataclass(frozen=True, slots=True)
class Group:
    """The n responses one member sampled for one prompt in one step.

    `rewards` [n] are 0 or 1. `graded` [n] is False where the verifier gave no verdict (time-out, crash, error): the
    reward is then 0, but the group proves nothing about the member, so it is neither `all_fail` nor `mixed`.
    """

    member: str
    prompt: int
    responses: tuple[Response, ...]
    rewards: NDArray[np.float64]
    graded: NDArray[np.bool_]

    def __post_init__(self) -> None:
        n = len(self.responses)
        if n == 0 or self.rewards.shape != (n,) or self.graded.shape != (n,):
            raise ValueError(
                f"group of member {self.member!r} on prompt {self.prompt}: {n} responses with rewards of shape "
                f"{self.rewards.shape} and verdicts of shape {self.graded.shape}; expected one of each per response"
            )

    @property
    def n(self) -> int:
        """Number of responses."""
        return len(self.responses)

    @property
    def successes(self) -> int:
        """Number of responses with a reward above 0 (k in the paper)."""
        return int(np.count_nonzero(self.rewards > 0))

    @property
    def errors(self) -> int:
        """Number of responses the verifier could not judge."""
        return int(np.count_nonzero(~self.graded))

    @property
    def all_fail(self) -> bool:
        """Every response was judged and is wrong: the group may be replaced by a peer's."""
        return self.successes == 0 and self.errors == 0

    @property
    def mixed(self) -> bool:
        """Every response was judged and 1 <= k < n: the group may be given to a peer."""
        return 0 < self.successes < self.n and self.errors == 0

    @property
    def all_solved(self) -> bool:
        """Every response is right."""
        return self.successes == self.n
