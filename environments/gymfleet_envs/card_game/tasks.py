"""Seeded games that the expert wins."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from gymfleet_envs.card_game.battle import Battle
from gymfleet_envs.card_game.kinds import NAMES, OWN_SHARE, STANDARD, TEAM, Rules
from gymfleet_envs.card_game.match import Match
from gymfleet_envs.card_game.moves import guesses
from gymfleet_envs.card_game.players import Opponent, opponents_guess, opponents_move, thoughtful
from gymfleet_envs.card_game.suspicion import as_seen_by, best_guess
from gymfleet_envs.tasks import GeneratedTasks

EXPERT_DEPTH: Final = 2
PUBLISHED: Final = "agentbench"
_OPPONENTS: Final[tuple[Opponent, ...]] = ("random", "greedy", "strong")
_LEVELS: Final = (*_OPPONENTS, *(f"guess_{name}" for name in _OPPONENTS), PUBLISHED)


@dataclass(frozen=True, slots=True)
class Duel:
    """Two teams, by position, and the opponent that plays the enemy team."""

    own: tuple[int, ...]
    enemy: tuple[int, ...]
    begins: bool
    """Whether the agent moves first."""
    has_guesses: bool
    opponent: Opponent
    seed: int
    """Seed of all draws in the game: evasions and the opponent's choices."""

    @property
    def side(self) -> int:
        """The agent's side: 0 is the player who begins."""
        return 0 if self.begins else 1

    def match(self, rules: Rules) -> Match:
        """Return the game before the first turn."""
        kinds = (*self.own, *self.enemy) if self.begins else (*self.enemy, *self.own)
        return Match(Battle(kinds, OWN_SHARE[rules], self.seed), has_guesses=self.has_guesses)


def generated_tasks(rules: Rules) -> GeneratedTasks[Duel]:
    """Return games by opponent, without and with guesses; `agentbench` has AgentBench's teams and two baselines.

    The fingerprint leaves out the opponent and the draws: no two splits share a pair of teams.
    """
    return GeneratedTasks(
        "card_game",
        _generate,
        lambda duel: " ".join(NAMES[kind] for kind in (*duel.own, *duel.enemy)) + f" {duel.begins}",
        levels=_LEVELS,
        accepts=lambda duel: is_worth_playing(duel, rules),
    )


def fair_tasks() -> GeneratedTasks[Duel]:
    """Return games between two agents that have the same four kinds, each at its own positions."""
    return GeneratedTasks(
        "card_game_self_play",
        _generate_fair,
        lambda duel: " ".join(NAMES[kind] for kind in (*duel.own, *duel.enemy)) + f" {duel.seed}",
        levels=("standard", "guess"),
    )


def play_opponent(match: Match, opponent: Opponent) -> None:
    """Take the opponent's turn: its guess, if one is due, and its move."""
    if match.is_guess_due:
        match.guess(opponents_guess(opponent, match.battle, match.known))
    if match.winner is None:
        match.move(opponents_move(opponent, match.battle, match.known))


def is_worth_playing(duel: Duel, rules: Rules) -> bool:
    """Return whether the expert wins without leaving an enemy alive, and two blind players do not win.

    One blind player always takes the first possible action, the other always the last. AgentBench's teams need only
    the expert's win.
    """
    blind = () if set(duel.own) | set(duel.enemy) == set(STANDARD) else (0, -1)
    for place in blind:
        if _played(duel, rules, partial(_play_blindly, place)).winner == duel.side:
            return False
    return _played(duel, rules, play_expert).score(duel.side) == 1.0


def play_expert(match: Match) -> None:
    """Make the guess or the move of a player who thinks two moves ahead and knows only what it has seen."""
    if match.is_guess_due:
        match.guess(best_guess(match.battle, match.known))
    else:
        match.move(thoughtful(as_seen_by(match.battle.mover, match.battle, match.known), EXPERT_DEPTH))


def _play_blindly(place: int, match: Match) -> None:
    if match.is_guess_due:
        match.guess(guesses(match.battle, match.known)[place])
    else:
        match.move(match.battle.possible_moves()[place])


def _played(duel: Duel, rules: Rules, play: Callable[[Match], None]) -> Match:
    """Return a finished game, in which `play` has played for the agent."""
    match = duel.match(rules)
    while match.winner is None:
        if match.battle.mover == duel.side:
            play(match)
        else:
            play_opponent(match, duel.opponent)
    return match


def _generate(rng: random.Random, level: str) -> Duel:
    begins, seed = rng.random() < 0.5, rng.getrandbits(63)
    if level == PUBLISHED:
        own, enemy = (tuple(rng.sample(STANDARD, TEAM)) for _ in range(2))
        return Duel(own, enemy, begins, True, rng.choice(_OPPONENTS[:2]), seed)
    own, enemy = (tuple(rng.sample(range(len(NAMES)), TEAM)) for _ in range(2))
    return Duel(own, enemy, begins, level not in _OPPONENTS, _opponent(level), seed)


def _generate_fair(rng: random.Random, level: str) -> Duel:
    kinds = rng.sample(range(len(NAMES)), TEAM)
    own, enemy = (tuple(rng.sample(kinds, TEAM)) for _ in range(2))
    return Duel(own, enemy, True, level == "guess", "strong", rng.getrandbits(63))


def _opponent(level: str) -> Opponent:
    return next(name for name in _OPPONENTS if level.endswith(name))
