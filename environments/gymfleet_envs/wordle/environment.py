"""Wordle as an environment."""

import copy
import random
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import ExpertMove

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.wordle.expert import next_guess
from gymfleet_envs.wordle.game import NUM_GUESSES, consistent, feedback, parse_guess, spaced
from gymfleet_envs.wordle.tasks import WordleTask, generated_tasks, word_list_tasks


class Wordle(Environment[WordleTask]):
    """Six guesses at a word of five letters."""

    name: ClassVar[str] = "wordle"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Guess a hidden five-letter word within six tries"
    instructions: ClassVar[str] = (
        'Guess a hidden word of 5 letters in at most 6 tries. Write each guess as spaced letters, like "s h i r e". '
        "The feedback has one letter per position:\n"
        "b: this letter is not in the word\n"
        "y: this letter is in the word, at another position\n"
        "g: this letter is in the word, at this position\n"
        "Only words of the vocabulary are accepted; an invalid word costs a try."
    )
    max_turns: ClassVar[int] = NUM_GUESSES
    max_action_chars: ClassVar[int] = 256
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "guesses_in_order": {"words_20": 0.3, "words_100": 0.06, "words_400": 0.015, "shared_400": 0.015},
        "plays_the_gold_of_another_task": {
            "words_20": 0.004,
            "words_100": 0.004,
            "words_400": 0.004,
            "shared_400": 0.035,
        },
    }
    licence: ClassVar[str] = "Apache-2.0; benchmark word lists: LMRL-Gym (MIT)"

    def __init__(self) -> None:
        self._task: WordleTask
        self._random_state: tuple[object, ...] = ()
        self._history: tuple[tuple[str, str], ...] = ()
        self._guesses_left = NUM_GUESSES
        self._solved = False

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[WordleTask]:
        """Sampled vocabularies of our own, or LMRL-Gym's word lists from `data/*.txt`."""
        return generated_tasks() if data is None else word_list_tasks(data)

    def reset(self, task: WordleTask, seed: int) -> str:
        """Hide the word. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._task = task
        self._random_state = () if task.redraw_seed is None else random.Random(task.redraw_seed).getstate()
        self._history = ()
        self._guesses_left = NUM_GUESSES
        self._solved = False
        if task.listed:
            return f"Let's start Wordle!\nVocabulary: {', '.join(task.vocabulary)}"
        return f"Let's start Wordle!\nVocabulary: {len(task.vocabulary)} English words"

    def step(self, action: str) -> Outcome:
        """Take one guess; a word outside the vocabulary costs a guess too."""
        self._guesses_left -= 1
        guess = parse_guess(action)
        if guess is None or guess not in self._task.vocabulary:
            return self._outcome("invalid word", action_valid=False)
        hidden = self._hidden_word()
        shown = feedback(guess, hidden)
        self._history = (*self._history, (guess, shown))
        self._solved = guess == hidden
        return self._outcome(spaced(shown))

    def expert(self) -> ExpertMove | None:
        """Return a word that splits the possible words well, and is usually one of them."""
        if self._solved or self._guesses_left < 1:
            return None
        return next_guess(self._task.vocabulary, self._still_possible(), self._guesses_left)

    def state_key(self) -> str:
        """The guesses so far and the number left; for a fixed word the order of guesses makes no difference."""
        known = self._history if self._task.hidden is None else sorted(self._history)
        return f"{self._guesses_left} {' '.join(guess + shown for guess, shown in known)}"

    def snapshot(self) -> Self:
        """A shallow copy: the whole state is immutable, and steps replace it."""
        return copy.copy(self)

    def _still_possible(self) -> tuple[str, ...]:
        words = self._task.vocabulary
        for guess, shown in self._history:
            words = consistent(words, guess, shown)
        return words

    def _hidden_word(self) -> str:
        if self._task.hidden is not None:
            return self._task.hidden
        # LMRL-Gym draws anew from the words still possible: to a player this looks the same as a fixed word.
        rng = random.Random()
        rng.setstate(self._random_state)
        hidden = rng.choice(self._still_possible())
        self._random_state = rng.getstate()
        return hidden

    def _outcome(self, observation: str, *, action_valid: bool = True) -> Outcome:
        value = float(self._solved)
        return Outcome(
            observation,
            reward=value,
            terminated=self._solved or self._guesses_left < 1,
            score=value,
            action_valid=action_valid,
            info={"guesses_left": self._guesses_left},
        )


ENVIRONMENT: Final = Wordle
