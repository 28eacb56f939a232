"""The nine kinds of fish, and the rules for each."""

from typing import Final, Literal

HEALTH: Final = 400
ATTACK: Final = 200
TEAM: Final = 4
NAMES: Final = (
    "spray", "flame", "eel", "sunfish", "barracuda", "mobula", "octopus", "whiteshark", "hammerhead",
)  # fmt: skip
SPRAY, FLAME, EEL, SUNFISH, BARRACUDA, MOBULA, OCTOPUS, WHITESHARK, HAMMERHEAD = range(9)
PLAIN: Final = 9
"""A kind without abilities, which a player may assume for a fish of unknown kind."""
STANDARD: Final = (SPRAY, FLAME, EEL, SUNFISH)

COUNTERS: Final = frozenset({SPRAY, FLAME})
SHARES: Final = frozenset({EEL, SUNFISH})
EVADES: Final = frozenset({BARRACUDA, MOBULA})
HEALS: Final = frozenset({OCTOPUS, WHITESHARK})

HITS_ALL: Final = frozenset({SPRAY, EEL})
INFIGHTS: Final = frozenset({FLAME, SUNFISH})
CRITS: Final = frozenset({WHITESHARK, HAMMERHEAD})
SHIELDS: Final = frozenset({MOBULA, OCTOPUS})
ON_FRIENDS: Final = INFIGHTS | SHIELDS
"""Kinds whose active ability has a target in their own team."""

Rules = Literal["english", "chinese"]
OWN_SHARE: Final[dict[Rules, int]] = {"english": 30, "chinese": 70}
"""The percentage of a shared damage that eel and sunfish take themselves."""

_ALL: Final = "AOE: attacks all enemies for 35% of its attack points."
_INFIGHT: Final = (
    "Infight: attacks one living teammate, not itself, for 75 damage, and increases its own attack points by 140."
)
_CRIT: Final = (
    "Crit: deals 120% of its attack points as damage to the enemy with the lowest health, which must be the target; "
    "140% if the target's health is below 160."
)
_SHIELD: Final = (
    "Subtle: chooses a living teammate or itself, which takes 70% less damage when it is next attacked and gains "
    "20 attack points."
)
_COUNTER: Final = "Counter: deals 30 damage to the attacker when a teammate whose health is below 30% was attacked."
_REDUCE: Final = "Reduce: avoids any incoming damage with a chance of 30%."
_HEAL: Final = "Heal: regains 20 health points when it was damaged and is alive."
_EXPLODE: Final = (
    "Explode: deals 40 damage to the attacker when it was attacked and is alive. Has 15 attack points more while its "
    "health is below 20%."
)
_DEFLECT: Final = (
    "Deflect: distributes {others}% of the damage to its living teammates and takes {own}% when attacked. Gains 40 "
    "attack points for every 200 damage that it has taken."
)
_ACTIVES: Final = (
    _ALL, _INFIGHT, _ALL, _INFIGHT, "Crit: deals 120 damage to an enemy.", _SHIELD, _SHIELD, _CRIT, _CRIT,
)  # fmt: skip
_PASSIVES: Final = (_COUNTER, _COUNTER, _DEFLECT, _DEFLECT, _REDUCE, _REDUCE, _HEAL, _HEAL, _EXPLODE)


def described(kind: int, rules: Rules) -> str:
    """Return a kind's abilities in two or more sentences."""
    own = OWN_SHARE[rules]
    passive = _PASSIVES[kind].format(own=own, others=100 - own)
    return f"{NAMES[kind]}: active ability: {_ACTIVES[kind]} Passive ability: {passive}"
