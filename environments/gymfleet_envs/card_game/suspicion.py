"""The kinds that each hidden fish may still be, after what both players have seen."""

from collections.abc import Iterable
from typing import Final

from gymfleet_envs.card_game.battle import Battle, Guess, Move
from gymfleet_envs.card_game.kinds import (
    BARRACUDA,
    COUNTERS,
    CRITS,
    EVADES,
    HAMMERHEAD,
    HEALS,
    HITS_ALL,
    INFIGHTS,
    PLAIN,
    SHARES,
    SHIELDS,
    TEAM,
)

Suspicions = tuple[frozenset[int], ...]
"""The kinds that each of the eight fish may be."""

_SEEN: Final = {"Counter": COUNTERS, "Deflect": SHARES, "Reduce": EVADES, "Heal": HEALS, "Explode": {HAMMERHEAD}}
_ACTIVE: Final = tuple(map(frozenset, (HITS_ALL, INFIGHTS, SHIELDS, CRITS | {BARRACUDA})))


def at_the_start(battle: Battle, *, is_hidden: bool) -> Suspicions:
    """Return what is known at the start: all kinds, or if they are hidden, each team's kinds but not their places."""
    if not is_hidden:
        return tuple(frozenset({kind}) for kind in battle.kinds)
    teams = [frozenset(battle.kinds[:TEAM]), frozenset(battle.kinds[TEAM:])]
    return (teams[0],) * TEAM + (teams[1],) * TEAM


def after_guess(known: Suspicions, battle: Battle, guess: Guess, *, is_right: bool) -> Suspicions:
    """Return what is known after a guess of the player to move."""
    fish = TEAM * (1 - battle.mover) + guess.target
    left = frozenset({guess.kind}) if is_right else known[fish] - {guess.kind}
    return _settled(_narrowed(known, [(fish, left)]))


def after_move(known: Suspicions, before: Battle, after: Battle, move: Move) -> Suspicions:
    """Return what is known after a move about the fish that made it and those whose abilities it triggered."""
    found: list[tuple[int, Iterable[int]]] = [(fish, _SEEN[passive]) for fish, passive in after.told]
    if move.active:
        fish = TEAM * before.mover + move.fish
        kind = before.kinds[fish]
        found.append((fish, next(group for group in _ACTIVE if kind in group)))
    return _settled(_narrowed(known, found)) if found else known


def as_seen_by(side: int, battle: Battle, known: Suspicions) -> Battle:
    """Return the battle as a player thinks of it: enemies of unknown kind are plain fish, and nothing is drawn."""
    seen = battle.copy()
    seen.luck = None
    kinds = list(battle.kinds)
    for fish in range(TEAM * (1 - side), TEAM * (1 - side) + TEAM):
        if len(known[fish]) > 1:
            kinds[fish] = PLAIN
    seen.kinds = tuple(kinds)
    return seen


def best_guess(battle: Battle, known: Suspicions) -> Guess | None:
    """Return the guess most likely to be right; None if nothing is left to guess."""
    other = TEAM * (1 - battle.mover)
    places = battle.unexposed(1 - battle.mover)
    if not places:
        return None
    place = min(places, key=lambda one: (len(known[other + one]), one))
    return Guess(place, min(known[other + place]))


def _narrowed(known: Suspicions, found: Iterable[tuple[int, Iterable[int]]]) -> Suspicions:
    kinds = list(known)
    for fish, possible in found:
        kinds[fish] &= frozenset(possible)
    return tuple(kinds)


def _settled(known: Suspicions) -> Suspicions:
    """Cross out the kinds of known fish for their teammates, until nothing changes: a team has each kind once."""
    kinds = list(known)
    for team in (range(TEAM), range(TEAM, 2 * TEAM)):
        crossed: frozenset[int] = frozenset()
        while True:
            certain = frozenset().union(*(kinds[fish] for fish in team if len(kinds[fish]) == 1))
            if certain == crossed:
                break
            crossed = certain
            for fish in team:
                if len(kinds[fish]) > 1:
                    kinds[fish] -= certain
    return tuple(kinds)
