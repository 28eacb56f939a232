"""Score answers with the package's own scorer, which no answer may crash, hang or trick into giving a point."""

import copy
from typing import Final

from gymfleet_envs.deadline import Overdue, within
from gymfleet_envs.reasoning_gym.guards import GUARDS
from gymfleet_envs.reasoning_gym.source import Question

MAX_CHARS: Final = 16_384
TIMEOUT_S: Final = 5.0
_FULL: Final = 1 - 1e-9


class ScorerFailed(Exception):
    """The package's scorer fails for any answer: there is no score."""


def package_score(question: Question, answer: str) -> float:
    """Return the package's score, in [0, 1]; 0 for an answer that its scorer cannot read, or not in `TIMEOUT_S`.

    Raises ScorerFailed if the answer is not at fault, because the right answer cannot be scored either.
    """
    if not answer or len(answer) > MAX_CHARS or any("\ud800" <= sign <= "\udfff" for sign in answer):
        return 0.0
    guard = GUARDS.get(question.dataset)
    if guard is not None and (told := guard(answer, question.entry)) is not None:
        return float(told)
    try:
        given = _scored(question, answer)
    except (Exception, Overdue) as error:  # noqa: BLE001 - foreign code on a text that a model wrote
        _require_the_answers_fault(question, error)
        return 0.0
    return given if 0.0 <= given <= 1.0 else 0.0


def _scored(question: Question, answer: str) -> float:
    # Some scorers write into the entry, which the sessions of a group share.
    entry = copy.deepcopy(question.entry)
    return within(TIMEOUT_S, lambda: float(question.scorer.score_answer(answer, entry)))


def _require_the_answers_fault(question: Question, error: BaseException) -> None:
    """Raise ScorerFailed unless the right answer, if the package names one, can be scored in time, here and now."""
    if not (solution := question.solution):
        if isinstance(error, Overdue):
            raise ScorerFailed(f"{question.dataset}: no score in {TIMEOUT_S:g} s") from None
        return
    try:
        _scored(question, solution)
    except (Exception, Overdue) as again:  # noqa: BLE001 - likewise
        told = f"no score in {TIMEOUT_S:g} s" if isinstance(again, Overdue) else f"{type(again).__name__}: {again}"
        raise ScorerFailed(f"{question.dataset}: its own answer cannot be scored: {told}") from None


def is_right(given: float) -> bool:
    """Return whether a score is the package's full score. Partial credit is no success."""
    return given >= _FULL
