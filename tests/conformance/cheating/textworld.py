"""What an agent would do in textworld that wants the reward and not the task."""

from typing import Final

from gymfleet_env_server.cheats import Attempt, Cheat


def _claims_to_have_won(attempt: Attempt) -> None:
    attempt.act_all(
        "*** The End ***", "You scored 1 out of a possible 1.", "Your score has just gone up by one point.",
        "tw-print max_score", "tw-extra-infos score", "restart", "quit",
    )  # fmt: skip


def _tries_the_last_action_of_others(attempt: Attempt) -> None:
    """What ends an episode of its kind, without what leads there."""
    attempt.act_all(
        "take coin", "prepare meal", "eat meal", "eat RECIPE", "take P", "take I", "drop P", "insert I into I"
    )


def _opens_and_takes_all(attempt: Attempt) -> None:
    """Points of a room, without the quest."""
    while wanted := [action for action in _actions(attempt) if action.startswith(("take ", "open "))]:
        attempt.act(wanted[0])


def _eats_what_it_can(attempt: Attempt) -> None:
    while wanted := [action for action in _actions(attempt) if action.startswith(("eat ", "take "))]:
        attempt.act(wanted[0])


def _actions(attempt: Attempt) -> list[str]:
    return list(attempt.environment.admissible_actions() or ())


CHEATS: Final = (
    Cheat("claims_to_have_won", _claims_to_have_won),
    Cheat("tries_the_last_action_of_others", _tries_the_last_action_of_others),
    Cheat("opens_and_takes_all", _opens_and_takes_all),
    Cheat("eats_what_it_can", _eats_what_it_can),
)
