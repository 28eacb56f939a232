"""The host without a model: it answers by the words of a question."""

from dataclasses import dataclass
from typing import Final, Literal

from gymfleet_envs.lateral_thinking.puzzle import Puzzle
from gymfleet_envs.lateral_thinking.questions import is_negated, named, share, terms

Answer = Literal["yes", "no", "irrelevant"]
_COVERS: Final = 0.6
"""Share of a published key's words that a question must have to state the key."""
_KEEPS_TO: Final = 0.6
"""Share of a question's words that must be the key's or the story's: a list of words states nothing."""
_AGREES: Final = 0.8
"""Share of a question's words that must be the truth's or the story's for a yes."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The host's answer, and the place of the key that the question hit, or None."""

    answer: Answer
    key: int | None = None


class TooMuch(Exception):
    """The question asks for several things at once."""


def answer_by_words(puzzle: Puzzle, question: str) -> Verdict:
    """Return the verdict on a question. Raises `TooMuch`."""
    return _of_lexicon(puzzle, question) if puzzle.values else _of_texts(puzzle, question)


def is_in_story(puzzle: Puzzle, question: str) -> bool:
    """Return whether a question states only what the story already says."""
    if puzzle.values and named(question, puzzle.language).values:
        return False
    said = terms(question, puzzle.language)
    if not said or said - terms(puzzle.story, puzzle.language):
        return False
    if any(share(terms(key, puzzle.language), said) >= _COVERS for key in puzzle.keys):
        return any(share(terms(key, puzzle.language), said) == 1.0 for key in puzzle.story_keys)
    return True


def _of_lexicon(puzzle: Puzzle, question: str) -> Verdict:
    """Return the verdict in a generated puzzle, which defines for the whole lexicon what belongs to the truth."""
    found = named(question, puzzle.language)
    if found.is_too_much:
        raise TooMuch
    truth = {value.slot: value for value in puzzle.values}
    asked = found.values or found.groups
    if not asked or any(one.slot not in truth for one in asked):
        return Verdict("irrelevant")
    if found.values:
        holds = all(truth[value.slot] == value for value in found.values)
    else:
        holds = truth[found.groups[0].slot].group == found.groups[0].word("en")
    places = {puzzle.values.index(value) // 2 for value in found.values if value in puzzle.values}
    is_whole = len(found.values) == 2 and len(places) == 1 and holds and not found.is_negated
    return Verdict("yes" if holds is not found.is_negated else "no", places.pop() if is_whole else None)


def _of_texts(puzzle: Puzzle, question: str) -> Verdict:
    """Return the verdict in a published puzzle, which is only text: most of a key's words and few others state it."""
    language = puzzle.language
    said, story = terms(question, language), terms(puzzle.story, language)
    best, key = 0.0, None
    for place, text in enumerate(puzzle.keys):
        wanted = terms(text, language)
        covers = share(wanted, said)
        likeness = covers * share(said, wanted)
        if likeness > best and covers >= _COVERS and share(said, wanted | story) >= _KEEPS_TO:
            best, key = likeness, place
    if key is not None:
        is_same = is_negated(puzzle.keys[key], language) == is_negated(question, language)
        return Verdict("yes", key) if is_same else Verdict("no")
    truth = terms(" ".join((puzzle.truth, *puzzle.keys)), language)
    if not (said - story) & truth:
        return Verdict("irrelevant")
    agrees = share(said, truth | story) >= _AGREES
    return Verdict("yes" if agrees is not is_negated(question, language) else "no")
