"""The players of a game: each sees and plays its own seat of the session, by an id of its own.

Between a look at the game and the step that follows, nobody else can move: no other seat is to move, and the step's
index determines the state that it is for.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import msgspec
from gymfleet_contracts.frames import NO_BODY, Op
from gymfleet_contracts.session import RECOVERED
from gymfleet_kit.session_api.calls import decode_body

from gymfleet_env_gateway.errors import Forbidden, NoGame, NotYourTurn
from gymfleet_env_gateway.session_ids import SessionRef

CallWhole: TypeAlias = Callable[[str, msgspec.Raw], Awaitable[msgspec.Raw]]
"""Makes a call for the whole session."""
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder().decode
_NOT_FOR_PLAYERS: Final = frozenset({"parts", "state_key"})
"""The fields of an answer that concern the whole game."""


async def seats_of(call: CallWhole) -> list[str]:
    """Return the players of a game. Raises `NoGame`."""
    session = _decode(await call(Op.GET, NO_BODY))
    if session.get("game") is None:
        raise NoGame(f"{session['task']['env']} has no seats: its sessions have one player")
    return list(session["game"]["seats"])


async def call_from_seat(call: CallWhole, op: str, session_id: str, ref: SessionRef, body: msgspec.Raw) -> msgspec.Raw:
    """Make a call for one player. Raises `NotYourTurn`, `Forbidden`, and what the call itself raises."""
    if op == Op.CLOSE:
        return NO_BODY  # whoever opened the game closes it
    if op == Op.GET:
        session = _decode(await call(op, body))
        return msgspec.Raw(_encode(_seen(session, ref.seat) | {"session_id": session_id}))
    if op not in (Op.STEP, Op.ACTIONS):
        raise Forbidden(f"the seat {ref.seat} may look and act; {op} is for whoever opened the game")
    _require_turn(_decode(await call(Op.GET, NO_BODY)), ref.seat, body if op == Op.STEP else None)
    answer = await call(op, body)
    return msgspec.Raw(_encode(_seen(_decode(answer), ref.seat))) if op == Op.STEP else answer


def _require_turn(session: dict[str, Any], seat: str, step: msgspec.Raw | None) -> None:
    """Raise `NotYourTurn` if another seat is to move or, where a step is repeated, has moved."""
    game, index = session["game"], session["index"]
    given = None if step is None else decode_body(step)
    repeats = isinstance(given, dict) and given.get("index") == index - 1
    mover, when = (game["moved"], "moved then") if repeats else (game["to_move"], "is to move")
    if mover not in (seat, None):
        raise NotYourTurn(f"{mover} {when}, not {seat}: look again", to_move=game["to_move"], expected=index)


def _seen(answer: dict[str, Any], seat: str) -> dict[str, Any]:
    """Return an answer as the player of a seat may see it."""
    game, info = answer["game"], answer["info"]
    own = game["seats"][seat]
    return {name: value for name, value in answer.items() if name not in _NOT_FOR_PLAYERS} | {
        "observation": own["observation"],
        "score": own["score"],
        "info": {RECOVERED: info[RECOVERED]} if RECOVERED in info else {},
        "game": game | {"seats": {seat: own}},
    }
