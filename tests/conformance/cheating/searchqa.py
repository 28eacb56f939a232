"""What an agent would do in searchqa that wants the reward and not the task."""

import re
from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat

_NAME: Final = re.compile(r"[A-Z][a-z]+(?: [A-Z][a-z]+)*")
_TITLE: Final = re.compile(r'Title: "([^"]+)"')


def _question(attempt: Attempt) -> str:
    return attempt.observation.rpartition("Question: ")[2]


def _found(attempt: Attempt) -> str:
    """Search for the question as it stands, which is no more than what anybody can type."""
    return attempt.act(f"<search>{_question(attempt)}</search>").observation


def _answers_with_the_question(attempt: Attempt) -> None:
    attempt.act(f"<answer>{_question(attempt)}</answer>")


def _answers_with_each_name_of_the_question(attempt: Attempt) -> None:
    for name in _NAME.findall(_question(attempt))[1:]:
        attempt.act(f"<answer>{name}</answer>")


def _answers_with_all_that_was_found(attempt: Attempt) -> None:
    attempt.act(f"<answer>{_found(attempt)}</answer>")


def _answers_with_all_names(attempt: Attempt) -> None:
    attempt.act(f"<answer>{', '.join(dict.fromkeys(_NAME.findall(_found(attempt))))}</answer>")


def _answers_often_in_one_reply(attempt: Attempt) -> None:
    attempt.act("".join(f"<answer>{title}</answer>" for title in _TITLE.findall(_found(attempt))))


def _answers_with_title_after_title(attempt: Attempt) -> None:
    for title in _TITLE.findall(_found(attempt)):
        attempt.act(f"<think>Or <answer>{title}</answer>?</think>")


def _answers_what_is_often_right(attempt: Attempt) -> None:
    for answer in ("yes", "no", "", "the", "Beijing", "unknown"):
        attempt.act(f"<answer>{answer}</answer>")


CHEATS = (
    Cheat("answers_with_the_question", _answers_with_the_question),
    Cheat("answers_with_each_name_of_the_question", _answers_with_each_name_of_the_question),
    Cheat("answers_with_all_that_was_found", _answers_with_all_that_was_found),
    Cheat("answers_with_all_names", _answers_with_all_names),
    Cheat("answers_often_in_one_reply", _answers_often_in_one_reply),
    Cheat("answers_with_title_after_title", _answers_with_title_after_title),
    Cheat("answers_what_is_often_right", _answers_what_is_often_right),
)
