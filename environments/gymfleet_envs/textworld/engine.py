"""A running game: states that never change, and how a command leads from one to the next."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from gymfleet_envs.textworld.game import Game
from gymfleet_envs.textworld.logic import Action, Fact, Index, indexed

_PLACES: Final = frozenset({"at", "in", "on"})
_COOKED: Final = ("fried", "roasted", "grilled")
_CUT: Final = ("sliced", "chopped", "diced")


@dataclass(frozen=True, eq=False)
class State:
    """The state of a game. Copies of a session share it."""

    game: Game
    facts: frozenset[Fact]
    """The facts that actions change."""
    order: tuple[str, ...]
    """All things, the last moved first: in this order, Inform 7 lists the things in one place."""
    done: frozenset[int] = frozenset()
    """The numbers of the completed quests."""
    end: Literal["won", "lost"] | None = None

    @cached_property
    def index(self) -> Index:
        """The facts, by their contents."""
        return indexed(sorted(self.facts))

    @cached_property
    def actions(self) -> Mapping[str, Action]:
        """The possible actions, by command; none when the game is over."""
        found = [self.actions_of(verb) for verb in self.game.logic.verbs]
        return dict(sorted((command, action) for part in found for command, action in part.items()))

    def actions_of(self, verb: str) -> Mapping[str, Action]:
        """Return those of `actions` that begin with a word: the rules of other verbs are not tried."""
        game = self.game
        if self.end is not None or verb not in game.logic.verbs:
            return {}
        if (known := self._tried.get(verb)) is not None:
            return known
        found: dict[str, Action] = {}
        for action in game.logic.actions(verb, self.index, game.fixed, game.types, game.names):
            found.setdefault(action.command, action)
        return self._tried.setdefault(verb, found)

    def action(self, command: str) -> Action | None:
        """Return the action of a command; None if it is not possible now."""
        return self.actions_of(command.partition(" ")[0]).get(command)

    @cached_property
    def _tried(self) -> dict[str, Mapping[str, Action]]:
        """The actions of the verbs asked for so far."""
        return {}

    @property
    def room(self) -> str:
        """The room of the player."""
        return self.index["at", 1, "P"][0][2]

    @property
    def points(self) -> int:
        """The sum of the completed quests' rewards."""
        return sum(self.game.quests[number].reward for number in self.done)

    @property
    def key(self) -> str:
        """A text that is equal for equal states."""
        return repr((sorted(self.facts), sorted(self.done), self.end))

    def is_true(self, fact: Fact) -> bool:
        """Return whether a fact holds now."""
        return fact in (self.facts if fact[0] in self.game.logic.changing else self.game.facts)

    def holds(self, state: str, thing: str) -> bool:
        """Return whether a predicate holds of one thing. A locked thing is closed too."""
        if state == "closed":
            return not self.is_true(("open", thing))
        return self.is_true((state, thing))

    def contents(self, thing: str) -> list[str]:
        """Return the things in or on a thing, or carried, in the order in which they are listed."""
        inside = {
            fact[1]
            for predicate in ("in", "on")
            for fact in self.index.get((predicate, 2, thing), ())
            if fact[0] == predicate
        }
        return [entity for entity in self.order if entity in inside] if inside else []

    def on_the_floor(self) -> list[str]:
        """Return the portable things on the room's floor, in the order in which the game was written."""
        lying = {fact[1] for fact in self.index.get(("at", 2, self.room), ()) if self.game.is_a(fact[1], "o")}
        return [entity for entity in self.game.written if entity in lying]

    def after(self, action: Action) -> "State":
        """Return the state after an action, with the quests that it completes."""
        moved = [fact[1] for fact in action.added if fact[0] in _PLACES and fact[1] != "P"]
        order = (*moved, *(entity for entity in self.order if entity not in moved)) if moved else self.order
        facts = (self.facts - action.removed) | action.added
        return _judged(replace(self, facts=facts, order=order))

    def unready_meal(self) -> str | None:
        """Return, in the game's words, why a meal cannot be prepared yet; None if it can.

        The package's logic would let it be prepared from raw things, and lose the game; the compiled game refuses.
        """
        for ingredient in self.contents("RECIPE"):
            base = self.game.fixed["base", 2, ingredient][0][1]
            if base not in self.contents("I"):
                return "You still miss something."
            if self._one_of(_COOKED, base) != self._one_of(_COOKED, ingredient):
                return "Something still needs to be cooked."
            if self._one_of(_CUT, base) != self._one_of(_CUT, ingredient):
                return "Something still needs to be cut."
        return None

    def _one_of(self, properties: Sequence[str], thing: str) -> str | None:
        return next((name for name in properties if self.holds(name, thing)), None)

    def prefix(self, thing: str) -> str:
        """Return the words for a food's preparation, which precede its name in lists."""
        if not self.game.is_a(thing, "f"):
            return ""
        cut = self._one_of(_CUT, thing)
        cooked = (
            "raw" if self.holds("needs_cooking", thing)
            else "burned" if self.holds("burned", thing)
            else self._one_of(_COOKED, thing)
        )  # fmt: skip
        return "".join(f"{word} " for word in (cut, cooked) if word)

    def listed(self, things: Sequence[str], *, articles: bool) -> str:
        """Return names as a list: `a key, an apple and some milk`; `nothing` for none."""
        told = [self._listed(thing, articles) for thing in things]
        if len(told) < 2:
            return told[0] if told else "nothing"
        return f"{', '.join(told[:-1])} and {told[-1]}"

    def _listed(self, thing: str, articles: bool) -> str:
        entity = self.game.entities[thing]
        name = self.prefix(thing) + entity.name
        if not articles:
            return name
        return f"{entity.indefinite or ('an' if name[:1].lower() in 'aeiou' else 'a')} {name}"


def begin(game: Game) -> State:
    """Return the game's first state."""
    return State(game, game.changing, tuple(game.entities))


def _judged(state: State) -> State:
    """Complete and fail quests as the compiled game does after each turn: a completed quest can fail no more."""
    quests = state.game.quests
    done, lost = set(state.done), False
    for number, quest in enumerate(quests):
        if number in state.done:
            continue
        if any(all(map(state.is_true, event)) for event in quest.fails):
            lost = True
        elif any(all(map(state.is_true, event)) for event in quest.wins):
            done.add(number)
    needed = {number for number, quest in enumerate(quests) if quest.wins and not quest.optional}
    end: Literal["won", "lost"] | None = "won" if needed <= done else "lost" if lost else None
    return replace(state, done=frozenset(done), end=end)
