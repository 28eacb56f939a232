"""What an agent would do in Wordle that wants the reward and not the task."""

from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _words(attempt: Attempt) -> list[str]:
    return attempt.first.rpartition("Vocabulary: ")[2].split(", ")


def _says_the_vocabulary(attempt: Attempt) -> None:
    """Guess all words at once, in every spelling that might be read as several guesses."""
    words = _words(attempt)
    attempt.act_all(
        ", ".join(words), " ".join(words), "\n".join(words), "[" + ", ".join(map(repr, words)) + "]", "".join(words),
        f"{words[0]} {words[1]}",
    )  # fmt: skip


def _asks_for_the_word(attempt: Attempt) -> None:
    attempt.act_all("vocabulary", "hint", "?????", "g g g g g", "*****", ".....")


def _guesses_in_order(attempt: Attempt) -> None:
    """Guess the first six words, whatever is answered: what luck is worth."""
    attempt.act_all(*_words(attempt)[:6])


CHEATS: Final = (
    Cheat("says_the_vocabulary", _says_the_vocabulary),
    Cheat("asks_for_the_word", _asks_for_the_word),
    Cheat("guesses_in_order", _guesses_in_order),
)
