"""Players of Aquawar: three strengths of opponents, and the expert.

Each sees only what a player may see: in games with guesses, it takes unknown enemies for plain fish.
"""

from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeVar

from gymfleet_envs.card_game.battle import Battle, Guess, Move
from gymfleet_envs.card_game.kinds import BARRACUDA, CRITS, HITS_ALL, PLAIN, TEAM
from gymfleet_envs.card_game.luck import below
from gymfleet_envs.card_game.suspicion import Suspicions, as_seen_by, best_guess

ChoiceT = TypeVar("ChoiceT")
Opponent = Literal["random", "greedy", "strong"]
_DECIDED: Final = 1e6
_FACTORS: Final = tuple(1.2 if kind in CRITS else 0.5 for kind in range(PLAIN + 1))
"""The damage of the best attack on one enemy, as a factor of the attack points."""
_CONSIDERED: Final = 3
"""The number of best moves for which the expert looks further ahead."""


def opponents_guess(opponent: Opponent, battle: Battle, known: Suspicions) -> Guess | None:
    """Return the guess of the opponent, who is to move. Draws from the battle's luck."""
    places = battle.unexposed(1 - battle.mover)
    if opponent == "strong" or not places:
        return best_guess(battle, known)
    place = places[0] if opponent == "greedy" else _drawn(battle, places)
    return Guess(place, _drawn(battle, sorted(known[TEAM * (1 - battle.mover) + place])))


def opponents_move(opponent: Opponent, battle: Battle, known: Suspicions) -> Move:
    """Return the move of the opponent, who is to move. Draws from the battle's luck."""
    if opponent == "random":
        return _drawn(battle, battle.possible_moves())
    if opponent == "greedy":
        return _greedy(battle)
    return thoughtful(as_seen_by(battle.mover, battle, known), depth=1)


def thoughtful(seen: Battle, depth: int) -> Move:
    """Return the move with the best outlook after it; at depth 2, after the best answer to each of the best moves."""
    side = seen.mover
    ranked = _ranked(seen, seen.possible_moves())
    if depth == 1:
        return ranked[0][1]
    best, found = -_DECIDED, ranked[0][1]
    for outlook, move, after in ranked[:_CONSIDERED]:
        worst = outlook if after.winner() is not None else _after_best_answer(after, side, enough=best)
        if worst > best:
            best, found = worst, move
    return found


def _after_best_answer(seen: Battle, side: int, *, enough: float) -> float:
    """Return a side's outlook after the other's best answer; if it is at most `enough`, any number up to `enough`."""
    worst = _DECIDED
    for answer in seen.possible_moves():
        worst = min(worst, _outlook(_after(seen, answer), side))
        if worst <= enough:
            break
    return worst


def _greedy(battle: Battle) -> Move:
    """AgentBench's second baseline: kill, else hit all, else strike critically, else the strongest attacks."""
    own, other = TEAM * battle.mover, TEAM * (1 - battle.mover)
    friends, enemies = battle.living(battle.mover), battle.living(1 - battle.mover)
    strongest = max(friends, key=battle.attack_points)
    weakest = min(enemies, key=lambda fish: battle.health[fish])
    if battle.attack_points(strongest) // 2 >= battle.health[weakest]:
        return Move(strongest - own, False, weakest - other)
    if len(enemies) > 1 and (fish := _first(battle, friends, lambda kind: kind in HITS_ALL)) is not None:
        return Move(fish - own, True, 0)
    if (fish := _first(battle, friends, lambda kind: kind in CRITS or kind == BARRACUDA)) is not None:
        return Move(fish - own, True, weakest - other)
    return Move(strongest - own, False, enemies[0] - other)


def _first(battle: Battle, fish: Sequence[int], is_meant: Callable[[int], bool]) -> int | None:
    return next((one for one in fish if is_meant(battle.kinds[one])), None)


def _ranked(seen: Battle, moves: Sequence[Move]) -> list[tuple[float, Move, Battle]]:
    """Return moves with the outlook and the battle after each, the best first."""
    side = seen.mover
    found = [(move, _after(seen, move)) for move in moves]
    ranked = [(_outlook(after, side), move, after) for move, after in found]
    return sorted(ranked, key=lambda one: -one[0])


def _after(seen: Battle, move: Move) -> Battle:
    after = seen.copy()
    after.move(move)
    return after


def _outlook(battle: Battle, side: int) -> float:
    """Return how many moves longer a side's team would last than the enemy's, if each kept doing its best."""
    if (winner := battle.winner()) is not None:
        return _DECIDED if winner == side else -_DECIDED
    totals, alive = [0, 0], [0, 0]
    for fish, health in enumerate(battle.health):
        if health > 0:
            totals[fish >> 2] += health
            alive[fish >> 2] += 1
    strongest = [0.0, 0.0]
    for fish, health in enumerate(battle.health):
        if health > 0:
            team, kind = fish >> 2, battle.kinds[fish]
            factor = max(0.35 * alive[1 - team], 0.5) if kind in HITS_ALL else _FACTORS[kind]
            damage = factor * battle.attack_points(fish)
            strongest[team] = max(strongest[team], damage if kind != BARRACUDA else max(damage, 120.0))
    return totals[side] / strongest[1 - side] - totals[1 - side] / strongest[side]


def _drawn(battle: Battle, choices: Sequence[ChoiceT]) -> ChoiceT:
    if battle.luck is None:
        raise RuntimeError("who draws needs a battle with luck")
    place, battle.luck = below(battle.luck, len(choices))
    return choices[place]
