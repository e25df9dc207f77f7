"""Questions of the reader about evaluations, and about a run as far as runs are compared."""

from __future__ import annotations

from collections.abc import Sequence

from server.store import read_evaluations, read_scores, results
from server.store.counts import Ints
from server.store.questions import Questions
from server.store.records import EvaluationRecord
from server.store.scores import MeanInterval, Score
from server.store.views import BestCheckpoint, EvaluationMark, EvaluationSummary


class EvaluationQuestions(Questions):
    """Scores on benchmarks."""

    def evaluation_mark(self, run: str, *, repeats: bool = False) -> EvaluationMark:
        """As long as it stays the same, so do all answers about evaluations in the course of training, or about the
        repeated ones of given checkpoints."""
        with self._run(run) as (connection, key):
            return read_evaluations.mark(connection, key, repeats=repeats)

    def evaluations(self, run: str) -> list[EvaluationSummary]:
        """Those in the course of training, ordered by benchmark, step, member slot."""
        with self._run(run) as (connection, key):
            return read_evaluations.evaluations(connection, key)

    def best(self, run: str) -> list[BestCheckpoint]:
        """The best checkpoint of every member that has one, by the run's own rule, in slot order."""
        with self._run(run) as (connection, key):
            return read_evaluations.best(connection, key)

    def repeats(self, run: str) -> list[EvaluationRecord]:
        """The evaluations of the best checkpoints, by member, benchmark and repeat (1 and more)."""
        with self._run(run) as (connection, key):
            steps = {best.member: best.step for best in read_evaluations.best(connection, key)}
            return read_evaluations.records(connection, key, steps, repeats=True)

    def repeated_accuracy(self, run: str) -> dict[str, dict[int, dict[str, float]]]:
        """{benchmark: {step: {member: pass@1, mean over the repeats}}} of the best checkpoints."""
        return results.repeated_accuracy(self.repeats(run))

    def evaluation_records(self, run: str, step: int) -> list[EvaluationRecord]:
        """The evaluations after one step in the course of training, by member and benchmark, as they were written."""
        with self._run(run) as (connection, key):
            return read_evaluations.records(connection, key, dict.fromkeys(key.members, step), repeats=False)

    def evaluation_problems(self, run: str, benchmark: str, step: int, member: str) -> tuple[Ints, Ints, Ints]:
        """(prompt keys [P], correct [P], responses [P]), keys ascending, seeds summed."""
        with self._run(run) as (connection, key):
            return read_evaluations.evaluation_problems(connection, key, benchmark, step, member)

    def scores(self, run: str, steps: Sequence[tuple[str, int]], *, repeats: bool = False) -> list[Score]:
        """pass@1, pass@k and maj@k of members at one step each, (member, step), by member and benchmark; `repeats`: of
        the repeated evaluations of the best checkpoint."""
        with self._run(run) as (connection, key):
            return read_scores.scores(connection, key, dict(steps), repeats=repeats)

    def joint_scores(
        self, run: str, members: Sequence[str], benchmarks: Sequence[str], steps: Sequence[int]
    ) -> dict[int, MeanInterval]:
        """{step: mean over members and benchmarks with its 95 % interval over problems} of evaluations in the course of
        training, where all of the members were measured on all of the benchmarks."""
        with self._run(run) as (connection, key):
            return read_scores.joint_scores(connection, key, members, benchmarks, steps)
