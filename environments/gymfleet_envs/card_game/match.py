"""One game of two players: whose turn it is, what both have seen, and the texts for each player."""

import copy
import json
from dataclasses import dataclass
from typing import Final, Self

from gymfleet_envs.card_game.battle import Battle, Guess, Move
from gymfleet_envs.card_game.kinds import CRITS, HEALTH, HITS_ALL, INFIGHTS, NAMES, SHIELDS, TEAM, Rules, described
from gymfleet_envs.card_game.moves import guesses, read_guess, read_move, text_of_guess, text_of_move
from gymfleet_envs.card_game.suspicion import Suspicions, after_guess, after_move, at_the_start

_NOTHING: Final = ("None", "None", "None", "None")


@dataclass(frozen=True, slots=True)
class Seen:
    """The part of a player's last turn that both players saw."""

    action: tuple[str, ...] = _NOTHING
    """The fish, its damage, the targets' positions and the kind of ability."""
    passives: tuple[tuple[int, str], ...] = ()
    """Fish, by their numbers from 0 to 7, and the abilities that were triggered."""
    guess: str = ""
    """The guess in words; empty if there was none."""
    was_right: bool | None = None


class Match:
    """A game of two sides; side 0 begins. In games with guesses a turn is a guess and then a move, else a move."""

    def __init__(self, battle: Battle, *, has_guesses: bool) -> None:
        self.battle = battle
        self.has_guesses = has_guesses
        self.known: Suspicions = at_the_start(battle, is_hidden=has_guesses)
        self.seen = (Seen(), Seen())
        self.forfeited_by: int | None = None
        self.is_guess_due = has_guesses

    def copy(self) -> Self:
        """Return an independent match in the same state."""
        twin = copy.copy(self)
        twin.battle = self.battle.copy()
        return twin

    @property
    def state(self) -> tuple[object, ...]:
        """Everything that the rest of the game depends on, and what both players have seen."""
        return (*self.battle.state, self.known, self.seen, self.forfeited_by, self.is_guess_due)

    @property
    def winner(self) -> int | None:
        """The side that has won; None while the game goes on."""
        return self.battle.winner() if self.forfeited_by is None else 1 - self.forfeited_by

    def score(self, side: int) -> float:
        """Return AgentBench's score of a player: 0.7 for a win, and 0.3 for all of the enemy's health."""
        damage = self.battle.damage_taken(1 - side)
        return (7 * (self.winner == side) + 3 * damage / (TEAM * HEALTH)) / 10

    def play(self, text: str) -> None:
        """Play the guess or the move that a text spells for the player to move. Raises `Unplayable`."""
        if self.is_guess_due:
            self.guess(read_guess(text, self.battle))
        else:
            self.move(read_move(text, self.battle))

    def guess(self, guess: Guess | None) -> None:
        """Make a guess; None skips it, if there is nothing to guess."""
        battle, side = self.battle, self.battle.mover
        self.is_guess_due = False
        if guess is None:
            return
        is_right = battle.guess(guess)
        self.known = after_guess(self.known, battle, guess, is_right=is_right)
        words = f"position {guess.target} is {NAMES[guess.kind]}: {'right' if is_right else 'wrong'}"
        self._note(side, Seen(self.seen[side].action, self.seen[side].passives, words, is_right))

    def move(self, move: Move) -> None:
        """Make a move, which must be allowed."""
        side = self.battle.mover
        before = self.battle
        self.battle = before.copy()
        targets = self.battle.move(move)
        if self.has_guesses:
            self.known = after_move(self.known, before, self.battle, move)
        last = self.seen[side]
        self._note(side, Seen(_words(before, move, targets), tuple(self.battle.told), last.guess, last.was_right))
        self.is_guess_due = self.has_guesses and bool(self.battle.unexposed(1 - self.battle.mover))
        if self.has_guesses and not self.is_guess_due:
            self._note(1 - side, Seen(self.seen[1 - side].action, self.seen[1 - side].passives))

    def possible(self) -> list[str]:
        """Return the texts that may be played now; guesses only if they may be right."""
        if self.winner is not None:
            return []
        if self.is_guess_due:
            return [text_of_guess(guess) for guess in guesses(self.battle, self.known)]
        return [text_of_move(self.battle, move) for move in self.battle.possible_moves()]

    def introduction(self, side: int, rules: Rules) -> str:
        """Return the text for a player before the first turn."""
        own, other = self.battle.kinds[TEAM * side :][:TEAM], self.battle.kinds[TEAM * (1 - side) :][:TEAM]
        order = "first" if side == 0 else "second"
        kinds = "\n".join(described(kind, rules) for kind in sorted({*own, *other}))
        hidden = " Which of them is at which position is hidden." if self.has_guesses else ""
        return (
            f"{kinds}\n\nYour pet fish, by position: {', '.join(NAMES[kind] for kind in own)}.\n"
            f"The four types of the enemy's pet fish: {', '.join(sorted(NAMES[kind] for kind in other))}.{hidden}\n"
            f"You move {order}."
        )

    def told(self, side: int) -> str:
        """Return the text for a player in the current state."""
        if (winner := self.winner) is not None:
            return f"The game is over. You have {'won' if winner == side else 'lost'}."
        own, enemy = self.seen[side], self.seen[1 - side]
        passives = {
            f"Position: {fish % TEAM}": name
            for fish, name in (*own.passives, *enemy.passives)
            if fish // TEAM == 1 - side
        }
        guessed = f"Enemy's previous guess of your fish:\n{enemy.guess}\n" if enemy.guess else ""
        happened = (
            f"Enemy's previous action:\n{_table_of(enemy.action)}\n"
            f"Enemy's previous triggered passive ability:\n{json.dumps(passives)}\n{guessed}"
        )
        if self.is_guess_due:
            hidden = [str(place) for place in self.battle.unexposed(1 - side)]
            return (
                f"Previous Guess:\n{own.was_right}\nLive Unknown Enemy Fish:\n{hidden}\n{happened}"
                "Please output your guess."
            )
        own_guess = f"Your guess:\n{own.guess}\n" if own.guess else ""
        return (
            f"{own_guess}Following is the current game state:\n{self._table(side)}\n"
            f"Your previous action:\n{_table_of(own.action)}\n{happened}Please output your next action."
        )

    def _table(self, side: int) -> str:
        battle = self.battle
        own = [self._row(fish, NAMES[battle.kinds[fish]], str(battle.attack_points(fish)))
               for fish in range(TEAM * side, TEAM * side + TEAM)]  # fmt: skip
        other = range(TEAM * (1 - side), TEAM * (1 - side) + TEAM)
        enemy = [self._row(fish, self._enemy_kind(fish), "unknown") for fish in other]
        return json.dumps({"You": own, "Enemy": enemy})

    def _row(self, fish: int, kind: str, attack: str) -> dict[str, str]:
        return {"POSITION": str(fish % TEAM), "ID": kind, "HP": str(self.battle.health[fish]), "ATK": attack}

    def _enemy_kind(self, fish: int) -> str:
        is_open = not self.has_guesses or self.battle.exposed >> fish & 1
        return NAMES[self.battle.kinds[fish]] if is_open else "unknown"

    def _note(self, side: int, seen: Seen) -> None:
        self.seen = (seen, self.seen[1]) if side == 0 else (self.seen[0], seen)


def _words(before: Battle, move: Move, targets: list[int]) -> tuple[str, ...]:
    """Return the part of a move that both players see."""
    fish = TEAM * before.mover + move.fish
    kind, attack = before.kinds[fish], before.attack_points(fish)
    name, damage = "Normal", attack // 2
    if move.active and kind in HITS_ALL:
        name, damage = "AOE", attack * 35 // 100
    elif move.active and kind in INFIGHTS:
        name, damage = "Infight", 75
    elif move.active and kind in SHIELDS:
        name, damage = "Subtle", 0
    elif move.active:
        name = "Crit"
        factor = 14 if before.health[targets[0]] < HEALTH * 4 // 10 else 12
        damage = attack * factor // 10 if kind in CRITS else 120
    # As in AgentBench, the target of a shield is not shown.
    places = [] if name == "Subtle" else [str(target % TEAM) for target in targets]
    return (str(move.fish), str(damage), str(places), name)


def _table_of(action: tuple[str, ...]) -> str:
    """Return an action as JSON with AgentBench's keys."""
    return json.dumps(dict(zip(("ACTION_FISH", "ATK", "TARGET", "SKILL_TYPE"), action, strict=True)))
