"""The rules of Aquawar: a battle, and the effects of moves and guesses on it."""

from dataclasses import dataclass
from typing import Final, Self

from gymfleet_envs.card_game.kinds import (
    ATTACK,
    COUNTERS,
    CRITS,
    EVADES,
    HAMMERHEAD,
    HEALS,
    HEALTH,
    HITS_ALL,
    INFIGHTS,
    ON_FRIENDS,
    PLAIN,
    SHARES,
    TEAM,
)
from gymfleet_envs.card_game.luck import below

MOST_MOVES: Final = 63
"""Moves of both players together: AgentBench's engine ends a game after 128 states, two for the choice of fish."""
GUESS_DAMAGE: Final = 50
_INFIGHT_DAMAGE: Final = 75
_LOW: Final = HEALTH * 3 // 10
_WOUNDS: Final = 200
_FIRST, _SECOND = tuple(range(TEAM)), tuple(range(TEAM, 2 * TEAM))


@dataclass(frozen=True, slots=True)
class Move:
    """A move of one fish. `fish` and `target` are places from 0 to 3, each within its team."""

    fish: int
    active: bool
    target: int


@dataclass(frozen=True, slots=True)
class Guess:
    """A guess that the enemy's fish at a place is of a certain kind."""

    target: int
    kind: int


class Battle:
    """Two teams of four: fish 0 to 3 belong to the player who begins, 4 to 7 to the other.

    `told` collects passive abilities that were seen, as pairs of fish and name. If `luck` is None, every evasion counts
    as 30 % less damage: for players who think ahead and must not foresee the draws.
    """

    __slots__ = ("attacks", "exposed", "health", "kinds", "luck", "moves", "own_share", "shields", "told", "wounds")

    def __init__(self, kinds: tuple[int, ...], own_share: int, luck: int | None) -> None:
        self.kinds = kinds
        self.own_share = own_share
        self.luck = luck
        self.health = [HEALTH] * (2 * TEAM)
        self.attacks = [ATTACK] * (2 * TEAM)
        self.wounds = [0] * (2 * TEAM)
        self.shields = 0
        """A bit for each fish, as in `exposed`."""
        self.exposed = 0
        self.moves = 0
        """Number of moves of both players; modulo 2, it is the player to move."""
        self.told: list[tuple[int, str]] = []

    def copy(self) -> Self:
        """Return an independent battle in the same state."""
        twin = type(self).__new__(type(self))
        twin.kinds, twin.own_share, twin.luck = self.kinds, self.own_share, self.luck
        twin.health, twin.attacks, twin.wounds = self.health.copy(), self.attacks.copy(), self.wounds.copy()
        twin.shields, twin.exposed, twin.moves = self.shields, self.exposed, self.moves
        twin.told = []
        return twin

    @property
    def state(self) -> tuple[object, ...]:
        """Everything except `told`, as a value that can be compared and shown."""
        return (
            self.kinds, self.own_share, self.luck, tuple(self.health), tuple(self.attacks), tuple(self.wounds),
            self.shields, self.exposed, self.moves,
        )  # fmt: skip

    @property
    def mover(self) -> int:
        """The player to move: 0 is the player who began."""
        return self.moves & 1

    def living(self, side: int) -> list[int]:
        """Return the fish of a side that are alive, by their numbers from 0 to 7."""
        health = self.health
        return [fish for fish in (_SECOND if side else _FIRST) if health[fish] > 0]

    def attack_points(self, fish: int) -> int:
        """Return a fish's current attack points."""
        enraged = self.kinds[fish] == HAMMERHEAD and self.health[fish] * 5 < HEALTH
        return self.attacks[fish] + 15 if enraged else self.attacks[fish]

    def damage_taken(self, side: int) -> int:
        """Return how much health a side has lost."""
        return TEAM * HEALTH - sum(self.health[TEAM * side : TEAM * side + TEAM])

    def winner(self) -> int | None:
        """Return the side that has won; None while the game goes on. Called after a guess or a move.

        If no fish is left, the side that struck last wins. Once the moves are used up, the side with more living fish
        wins, then with more health, then with the healthiest fish, then the player who moved second.
        """
        health = self.health
        gone = [max(health[:TEAM]) <= 0, max(health[TEAM:]) <= 0]
        if gone[0] and gone[1]:
            return (self.moves - 1) & 1
        if gone[0] or gone[1]:
            return int(gone[0])
        if self.moves < MOST_MOVES:
            return None
        totals = [(len(self.living(side)), sum(health[TEAM * side : TEAM * side + TEAM]),
                   max(health[TEAM * side : TEAM * side + TEAM])) for side in (0, 1)]  # fmt: skip
        return 0 if totals[0] > totals[1] else 1

    def fault(self, move: Move) -> str | None:
        """Return why the player to move may not make this move; None if it is allowed."""
        own, other = TEAM * self.mover, TEAM * (1 - self.mover)
        kind = self.kinds[own + move.fish]
        if self.health[own + move.fish] <= 0:
            return "the fish is dead"
        if move.active and kind in HITS_ALL:
            return None
        is_on_friend = move.active and kind in ON_FRIENDS
        if self.health[(own if is_on_friend else other) + move.target] <= 0:
            return f"the {'teammate' if is_on_friend else 'enemy'} at the target position is dead"
        if move.active and kind in INFIGHTS and move.target == move.fish:
            return "a fish cannot attack itself"
        if move.active and kind in CRITS and self.health[other + move.target] > self._least(1 - self.mover):
            return "the target must be the enemy with the lowest health"
        return None

    def possible_moves(self) -> list[Move]:
        """Return the moves that the player to move may make."""
        own = TEAM * self.mover
        friends = [fish - own for fish in self.living(self.mover)]
        enemies = [fish % TEAM for fish in self.living(1 - self.mover)]
        moves: list[Move] = []
        for fish in friends:
            kind = self.kinds[own + fish]
            moves += [Move(fish, False, target) for target in enemies]
            if kind == PLAIN:
                continue
            if kind in HITS_ALL:
                moves.append(Move(fish, True, 0))
            elif kind in ON_FRIENDS:
                moves += [Move(fish, True, friend) for friend in friends if friend != fish or kind not in INFIGHTS]
            elif kind in CRITS:
                least, other = self._least(1 - self.mover), TEAM * (1 - self.mover)
                moves += [Move(fish, True, target) for target in enemies if self.health[other + target] == least]
            else:
                moves += [Move(fish, True, target) for target in enemies]
        return moves

    def guess(self, guess: Guess) -> bool:
        """Let the player to move guess; return whether the guess is right, which costs every enemy 50 health."""
        other = TEAM * (1 - self.mover)
        if self.kinds[other + guess.target] != guess.kind:
            return False
        self.exposed |= 1 << (other + guess.target)
        for fish in range(other, other + TEAM):
            self.health[fish] = max(0, self.health[fish] - GUESS_DAMAGE)
        return True

    def unexposed(self, side: int) -> list[int]:
        """Return the places of a side's living fish whose kind has not been guessed."""
        return [fish - TEAM * side for fish in self.living(side) if not self.exposed >> fish & 1]

    def move(self, move: Move) -> list[int]:
        """Make a move that has no `fault`; return the fish that were its targets.

        Fish die at the end of a move: until then they share damage and answer attacks.
        """
        side = self.mover
        own, other = TEAM * side, TEAM * (1 - side)
        fish = own + move.fish
        kind, attack = self.kinds[fish], self.attack_points(fish)
        alive = [health > 0 for health in self.health]
        self.told = []
        targets = [own + move.target if move.active and kind in ON_FRIENDS else other + move.target]
        if not move.active:
            self._attacked(fish, targets[0], attack // 2, alive)
        elif kind in HITS_ALL:
            targets = [one for one in range(other, other + TEAM) if alive[one]]
            for target in targets:
                self._attacked(fish, target, attack * 35 // 100, alive)
        elif kind in INFIGHTS:
            self._hurt(targets[0], _INFIGHT_DAMAGE)
            self.attacks[fish] += 140
        elif kind in CRITS:
            factor = 14 if self.health[targets[0]] < HEALTH * 4 // 10 else 12
            self._attacked(fish, targets[0], attack * factor // 10, alive)
        elif kind in ON_FRIENDS:
            self.shields |= 1 << targets[0]
            self.attacks[targets[0]] += 20
        else:
            self._attacked(fish, targets[0], 120, alive)
        if min(self.health) < 0:
            self.health = [max(0, health) for health in self.health]
        self.moves += 1
        return targets

    def _attacked(self, attacker: int, target: int, damage: int, alive: list[bool]) -> None:
        """Carry out an enemy's attack, with the passive abilities that it triggers."""
        team = range(target & TEAM, (target & TEAM) + TEAM)
        friends = [one for one in team if alive[one] and one != target]
        kind = self.kinds[target]
        if kind in SHARES and friends:
            self.told.append((target, "Deflect"))
            shared = damage * (100 - self.own_share) // 100 // len(friends)
            damage = damage * self.own_share // 100
            for friend in friends:
                self._hurt(friend, shared)
        self._hurt(target, damage, is_attack=True)
        if kind == HAMMERHEAD and self.health[target] > 0:
            self.told.append((target, "Explode"))
            self._hurt(attacker, 40)
        if self.health[target] < _LOW:
            for friend in friends:
                if self.kinds[friend] in COUNTERS:
                    self.told.append((friend, "Counter"))
                    self._hurt(attacker, 30)

    def _hurt(self, fish: int, damage: int, *, is_attack: bool = False) -> None:
        """Deal damage to a fish. A shield helps only against an attack."""
        kind = self.kinds[fish]
        if kind in EVADES:
            if self.luck is None:
                damage = damage * 7 // 10
            else:
                drawn, self.luck = below(self.luck, 10)
                if drawn < 3:
                    self.told.append((fish, "Reduce"))
                    return
        if is_attack and self.shields >> fish & 1:
            self.shields &= ~(1 << fish)
            damage = damage * 3 // 10
        self.health[fish] -= damage
        if kind in SHARES:
            self.wounds[fish] += damage
            self.attacks[fish] += 40 * (self.wounds[fish] // _WOUNDS)
            self.wounds[fish] %= _WOUNDS
        elif kind in HEALS and self.health[fish] > 0 and damage:
            self.told.append((fish, "Heal"))
            self.health[fish] = min(HEALTH, self.health[fish] + 20)

    def _least(self, side: int) -> int:
        return min(self.health[fish] for fish in self.living(side))
