"""A judge's training data: the questions that a reward service would ask, and the verdicts that known rewards give."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from gymfleet_contracts.conversation import MAX_MESSAGE_CHARS, Message
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_kit.judging.asking import WORTH, ByPairs, ByRubric
from gymfleet_kit.judging.prompts import NONCE_BYTES, Question
from gymfleet_kit.judging.transcript import NotShown

from gymfleet_trainer.learning.options import GenerativeJudgeOptions
from gymfleet_trainer.learning.reward_data import Example, Pair
from gymfleet_trainer.model.batching import TrainSequence

Verdict: TypeAlias = str | float
"""The value under the verdict's own key: a score, or which of two is better."""

_HALF: Final = math.log(0.5)
_DIGITS: Final = 6
"""Decimal places of a score."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A question as a component asks it, with the verdict that the reward gives."""

    name: str
    """Unique among all questions."""
    unit: str
    """The same for both orders of a pair, which belong in one update."""
    question: Question
    label: Verdict
    choices: tuple[Verdict, ...]
    """All possible verdicts, including the label."""

    @property
    def nonce(self) -> str:
        """Return the word that the verdict repeats, always the same for this question."""
        return hashlib.sha256(self.name.encode()).hexdigest()[: 2 * NONCE_BYTES]


@dataclass(frozen=True, slots=True)
class Judged:
    """A question in the tokens of the model that answers it."""

    asked: Asked
    prompt: tuple[int, ...]
    replies: Mapping[Verdict, tuple[int, ...]]
    """The tokens of each choice, including the one that ends it."""

    @property
    def num_tokens(self) -> int:
        """Return the length with the longest reply."""
        return len(self.prompt) + max(map(len, self.replies.values()))

    def row(self) -> TrainSequence:
        """Return the question with its verdict; only the verdict's tokens are learned."""
        return self._row(self.asked.label, self.asked.name, unit=self.asked.unit)

    def choice_rows(self) -> list[TrainSequence]:
        """Return the question with each possible verdict."""
        return [self._row(choice, f"{self.asked.name}/{place}") for place, choice in enumerate(self.asked.choices)]

    def _row(self, verdict: Verdict, name: str, **more: Any) -> TrainSequence:
        reply = self.replies[verdict]
        nothing = [0.0] * (len(self.prompt) + len(reply))
        mask = [False] * len(self.prompt) + [True] * len(reply)
        return TrainSequence([*self.prompt, *reply], mask, nothing, nothing, 0, name, **more)


class Questions:
    """Ask a reward service's questions about episodes, and write them in a model's tokens.

    Args:
        options: which components ask, and how.
        chat: the tokenizer and chat template of the model that answers. A server of the model uses the same.
        max_tokens: a question that exceeds this together with its verdict is left out.
    """

    def __init__(self, options: GenerativeJudgeOptions, chat: ChatTokens, max_tokens: int) -> None:
        self._options = options
        self._chat = chat
        self._max_tokens = max_tokens
        self._rubric, self._pairs = ByRubric(options, options), ByPairs(options)

    def about(self, examples: Sequence[Example], pairs: Sequence[Pair]) -> tuple[list[Judged], Counter[str]]:
        """Return the questions about episodes and pairs, and how many of these were left out, by reason.

        Raises `UnusableTemplate` for a template that accepts no system message.
        """
        found: list[Judged] = []
        left_out = Counter(dict.fromkeys(("not_shown", "alike", "too_long"), 0))
        for ask in self._asks(examples, pairs):
            try:
                unit = ask()
            except NotShown:
                left_out["not_shown"] += 1
                continue
            if not unit:
                left_out["alike"] += 1
            # Both orders of a pair or none, so that each place wins as often as the other.
            elif (judged := self._fitting(unit)) is None:
                left_out["too_long"] += 1
            else:
                found += judged
        return found, left_out

    def _asks(self, examples: Sequence[Example], pairs: Sequence[Pair]) -> Iterator[Callable[[], list[Asked]]]:
        if "judge" in self._options.components:
            yield from (partial(self._scored, example) for example in examples)
        if "judge_pairs" in self._options.components:
            yield from (partial(self._compared, pair) for pair in pairs)

    def _scored(self, example: Example) -> list[Asked]:
        """Return the question about an episode. Raises `NotShown`."""
        (transcript,) = self._rubric.transcripts([example.scored.trajectory])
        question = self._rubric.question(transcript)
        return [Asked(example.name, example.name, question, self._grade(example.reward), self._grades())]

    def _compared(self, pair: Pair) -> list[Asked]:
        """Return both orders of the question about a pair; none if both sides show the same. Raises `NotShown`."""
        better, worse = self._pairs.transcripts([one.scored.trajectory for one in pair])
        if better == worse:
            return []
        unit = f"{pair.chosen.name}>{pair.rejected.name}"
        return [
            Asked(f"{unit}#{label}", unit, self._pairs.question(*shown), label, tuple(WORTH))
            for label, shown in (("first", (better, worse)), ("second", (worse, better)))
        ]

    def _grade(self, reward: float) -> Verdict:
        """Return the score nearest to a reward's place between the worst and the best; of two scores, the higher."""
        worst, best = self._options.worst_reward, self._options.best_reward
        share = min(max((reward - worst) / (best - worst), 0.0), 1.0)
        return self._grades()[math.floor(share * (self._options.grades - 1) + 0.5)]

    def _grades(self) -> tuple[Verdict, ...]:
        lowest, steps = self._options.lowest, self._options.grades - 1
        scores = [lowest + (self._options.highest - lowest) * step / steps for step in range(steps + 1)]
        return tuple(int(score) if score.is_integer() else round(score, _DIGITS) for score in scores)

    def _fitting(self, unit: Sequence[Asked]) -> list[Judged] | None:
        """Return questions in tokens; None if one of them is too long."""
        found = []
        for asked in unit:
            messages = asked.question.messages(asked.nonce)
            if max(len(message["content"]) for message in messages) > MAX_MESSAGE_CHARS:
                return None
            replies = {choice: asked.question.shape.written(choice, asked.nonce) for choice in asked.choices}
            said = [*messages, {"role": "assistant", "content": replies[asked.label]}]
            (piece,) = self._chat.pieces([Message.model_validate(message) for message in said])
            judged = Judged(asked, piece.prompt, {choice: self._chat.reply(reply) for choice, reply in replies.items()})
            if judged.num_tokens > self._max_tokens:
                return None
            found.append(judged)
        return found


def measures(judged: Sequence[Judged], logprobs: Sequence[Sequence[float]]) -> dict[str, float]:
    """Return how well questions are answered, by the likeliest of the possible verdicts of each.

    `accuracy` is the share of questions whose likeliest verdict is the label. If each token of that verdict has more
    than half of the probability, greedy decoding writes the verdict word for word, so that a reward service can read
    it: `read_at_least` is the share of such questions, and `right_at_least` the share where it is also the label.

    Args:
        judged: the questions, at least one.
        logprobs: of the tokens of each verdict, in the order of `choice_rows`.
    """
    rows = iter(logprobs)
    right, sure, both = 0, 0, 0
    for one in judged:
        of_choices = dict(zip(one.asked.choices, rows, strict=False))
        likeliest = max(of_choices, key=lambda choice: math.fsum(of_choices[choice]))
        is_right, is_sure = likeliest == one.asked.label, min(of_choices[likeliest]) > _HALF
        right, sure, both = right + is_right, sure + is_sure, both + (is_right and is_sure)
    number = len(judged)
    return {"accuracy": right / number, "read_at_least": sure / number, "right_at_least": both / number}
