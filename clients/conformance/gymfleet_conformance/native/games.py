"""Games: each player sees and plays its own seat, in its turn. A gateway gives out seats; an env server has none."""

from http import HTTPStatus
from typing import Final

from gymfleet_contracts.session import AdmissibleActions, Game, Seats, Session, StepResult

from gymfleet_conformance.check import Need
from gymfleet_conformance.native.target import (
    DULL,
    EPISODE_OVER,
    FORBIDDEN,
    MAX_PLAYED_TURNS,
    NO_SEATS,
    NOT_YOUR_TURN,
    SUITE,
    UNKNOWN_SESSION,
    NativeTarget,
    over,
    read,
    refused,
)
from gymfleet_conformance.server_under_test import Failed, NotApplicable, require

_SEATS: Final = (Need.SEATS,)


async def _opened(target: NativeTarget, task_index: int = 0) -> tuple[Session, dict[str, str]]:
    """Open a game and return it with its seats' session ids. Raises `NotApplicable` if the server gives no seats."""
    game = await target.open(task_index=task_index)
    response = await target.call("POST", game.session_id, "/seats")
    if _unknown_route(response.status_code, game, await target.get(game.session_id)):
        raise NotApplicable("seats are given by a gateway, and this server has no such call")
    return game, read(Seats, response).seats


def _unknown_route(status: int, game: Session, now: Session) -> bool:
    """Return whether the call does not exist, rather than the session."""
    return status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) and now.task == game.task


def _game(answer: Session | StepResult) -> Game:
    if answer.game is None:
        raise Failed(f"it says nothing of the game: {answer}")
    return answer.game


async def _mover(target: NativeTarget, game: Session) -> str:
    to_move = _game(await target.get(game.session_id)).to_move
    if to_move is None:
        raise Failed("nobody is to move in a game that is not over")
    return to_move


async def _move(target: NativeTarget, game: Session) -> str:
    """Return an action for the player to move: a listed one, so that the game is won."""
    if target.spec.capabilities.admissible_actions:
        listed = read(AdmissibleActions, await target.call("GET", game.session_id, "/actions")).actions
        require(bool(listed), "no action is listed in a game that is not over")
        return listed[0]
    return await target.move(game.session_id)


@SUITE.must("games.seats-have-ids-of-their-own", needs=_SEATS)
async def ids_of_their_own(target: NativeTarget) -> None:
    """Each seat of a game has a session id of its own, and the same one when it is asked for again."""
    game, seats = await _opened(target)
    require(set(seats) == set(target.spec.seats), f"the seats are {sorted(target.spec.seats)}, given {sorted(seats)}")
    require(len({game.session_id, *seats.values()}) == 1 + len(seats), "an id was given twice")
    again = read(Seats, await target.call("POST", game.session_id, "/seats")).seats
    require(again == seats, f"asked again it gave {again}, at first {seats}")


@SUITE.must("games.a-seat-sees-itself-alone", needs=_SEATS)
async def sees_itself_alone(target: NativeTarget) -> None:
    """A seat is shown its own observation and score, and nothing that is said of others or of the whole game."""
    game, seats = await _opened(target, task_index=1)
    mover = await _mover(target, game)
    answers: list[tuple[str, Session | StepResult]] = []
    answers += [(name, await target.get(session_id)) for name, session_id in seats.items()]
    answers.append((mover, await target.step(seats[mover], 0, await _move(target, game))))
    answers += [(name, await target.get(session_id)) for name, session_id in seats.items()]
    for name, answer in answers:
        shown = _game(answer).seats
        require(set(shown) == {name}, f"{name} is shown the seats {sorted(shown)}")
        require(answer.observation == shown[name].observation, f"{name} is shown what is not its own observation")
        require(answer.score == shown[name].score, f"{name} is told the score {answer.score}, its own is {shown[name]}")
        require(answer.state_key is None, f"{name} is told the key of the whole game")


@SUITE.must("games.out-of-turn-is-refused", needs=_SEATS)
async def out_of_turn(target: NativeTarget) -> None:
    """A step of a seat that is not to move is a 409 `not-your-turn` and changes nothing."""
    game, seats = await _opened(target, task_index=2)
    mover = await _mover(target, game)
    before = await target.get(game.session_id)
    for name, session_id in seats.items():
        if name != mover:
            refused(await target.try_step(session_id, 0, DULL), NOT_YOUR_TURN)
    after = await target.get(game.session_id)
    unlike = {"expires_in_s"}
    require(after.model_dump(exclude=unlike) == before.model_dump(exclude=unlike), f"it became {after} of {before}")


@SUITE.must("games.players-play-it-to-its-end", needs=_SEATS, deadline_s=60.0)
async def played_to_its_end(target: NativeTarget) -> None:
    """Played from its seats alone, a game is the one that its opener sees, and ends for all of them."""
    if target.spec.max_turns > MAX_PLAYED_TURNS:
        raise NotApplicable(f"games of {target.spec.max_turns} turns are too long to play here")
    game, seats = await _opened(target, task_index=3)
    index = 0
    while not over(whole := await target.get(game.session_id)):
        require(index < target.spec.max_turns, f"the game goes on after {index} turns, which is max_turns")
        require(whole.index == index, f"after {index} steps its opener sees {whole.index}")
        mover = await _mover(target, game)
        result = await target.step(seats[mover], index, await _move(target, game))
        require(_game(result).moved == mover, f"{mover} moved, and {_game(result).moved} is told to have")
        index += 1
    for name, session_id in seats.items():
        end = await target.get(session_id)
        require(over(end), f"the game is over, and not for {name}")
        require(end.score == _game(whole).seats[name].score, f"{name} is told the score {end.score}: {whole}")
        refused(await target.try_step(session_id, index, DULL), EPISODE_OVER)


@SUITE.must("games.a-seat-looks-and-acts-and-nothing-else", needs=_SEATS)
async def looks_and_acts(target: NativeTarget) -> None:
    """A seat gets a 403 for forks, leases, the expert and seats, and closing it ends nothing."""
    game, seats = await _opened(target)
    calls: tuple[tuple[str, str, dict[str, object]], ...] = (
        ("POST", "/fork", {"json": {"count": 1}}), ("POST", "/lease", {"json": {}}),
        ("GET", "/expert", {}), ("POST", "/seats", {}),
    )  # fmt: skip
    for session_id in seats.values():
        for method, tail, body in calls:
            refused(await target.call(method, session_id, tail, **body), FORBIDDEN)
        await target.close(session_id)
        require((await target.get(session_id)).index == 0, "whoever has a seat ended the game")
    require((await target.get(game.session_id)).index == 0, "whoever has a seat ended the game")


@SUITE.must("games.a-seat-opens-no-other", needs=_SEATS)
async def opens_no_other(target: NativeTarget) -> None:
    """A seat's id with another seat's name in it is a 404 `unknown-session`, and so are all seats of a closed game."""
    game, seats = await _opened(target)
    for name, session_id in seats.items():
        for other in set(seats) - {name}:
            if name in session_id:
                refused(await target.call("GET", session_id.replace(name, other)), UNKNOWN_SESSION)
    await target.close(game.session_id)
    for session_id in seats.values():
        refused(await target.call("GET", session_id), UNKNOWN_SESSION)


@SUITE.must("games.no-seats-says-so", needs=(Need.NO_SEATS,))
async def no_seats(target: NativeTarget) -> None:
    """Seats of an environment for one player are refused as 409 `no-seats`."""
    session = await target.open()
    response = await target.call("POST", session.session_id, "/seats")
    if _unknown_route(response.status_code, session, await target.get(session.session_id)):
        raise NotApplicable("seats are given by a gateway, and this server has no such call")
    refused(response, NO_SEATS)
