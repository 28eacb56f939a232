"""`gymfleet envs play`: let a person play an episode."""

import sys
from pathlib import Path
from typing import Annotated

import typer
from gymfleet_client.errors import ActionTooLarge, ExpertUnavailable, UnknownSession
from gymfleet_client.sync import SyncGatewayClient
from gymfleet_contracts.session import EnvironmentSpec, OpenSession, Session, StepResult
from pydantic import ValidationError
from rich.rule import Rule

from gymfleet_cli.commands.data import DataOption
from gymfleet_cli.commands.envs import Url, environment_api
from gymfleet_cli.commands.fleet import StateDir
from gymfleet_cli.console import UsageProblem, one_line, out, plain

_PROMPT = "> "


def play(
    name: Annotated[str, typer.Argument(help="Environment: a name, package.module:Class or a .py file.")],
    split: Annotated[str, typer.Option(help="train, validation or test.")] = "train",
    level: Annotated[str | None, typer.Option(help="Difficulty. Default: the environment's.")] = None,
    index: Annotated[int, typer.Option(min=0, help="Which task of the split.")] = 0,
    seed: Annotated[int, typer.Option(min=0, help="For what is random within an episode.")] = 0,
    url: Url = None,
    data: DataOption = None,
    state_dir: StateDir = Path(".gymfleet"),
) -> None:
    """Play an episode in the terminal: type actions, `hint` for the expert's move, `quit` to leave."""
    with environment_api(name, url, data, state_dir) as (client, spec):
        try:
            request = OpenSession.model_validate(
                {"env": spec.name, "split": split, "level": level, "task_index": index, "seed": seed}
            )
        except ValidationError as error:
            first = error.errors(include_input=False)[0]
            raise UsageProblem(f"--{first['loc'][0]}: {first['msg']}") from None
        session = client.open(request)
        try:
            _play(client, spec, session)
        finally:
            _leave(client, session)


def _play(client: SyncGatewayClient, spec: EnvironmentSpec, session: Session) -> None:
    out.print(plain(spec.instructions))
    out.print(Rule(f"{spec.name} · {session.task.task_id}"))
    _show(session)
    turn = 0
    while (line := _ask()) is not None:
        if line in {"hint", "?"}:
            _hint(client, session, turn)
            continue
        try:
            result = client.step(session.session_id, turn, line)
        except ActionTooLarge as error:
            out.print(plain(str(error), "red"))
            continue
        turn += 1
        _show(result)
        if result.terminated or result.truncated:
            end = _end(result)
            out.print(Rule(f"{end} · turn {turn} · {_score(result)}"))
            return
    out.print(Rule("left before the end"))


def _show(answer: Session | StepResult) -> None:
    if answer.game is not None and answer.game.to_move is not None:
        out.print(plain(f"{answer.game.to_move} is to move", "bold"))
    out.print(plain(answer.observation))


def _end(result: StepResult) -> str:
    if not result.terminated:
        return "out of turns"
    if result.game is not None:
        return "over"
    return "solved" if result.score >= 1 else "not solved"


def _score(result: StepResult) -> str:
    if result.game is None:
        return f"score {result.score:g}"
    return ", ".join(f"{name} {seat.score:g}" for name, seat in result.game.seats.items())


def _ask() -> str | None:
    """Read the next action; None at the end of the input, or for `quit`."""
    while True:
        sys.stdout.write(_PROMPT)
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not sys.stdin.isatty():  # a pipe: show what was read, so that the transcript reads like a game
            sys.stdout.write(f"{one_line(line)}\n")
        if not line or line.strip() in {"quit", "exit"}:
            return None
        if line.strip():
            return line.strip()


def _hint(client: SyncGatewayClient, session: Session, turn: int) -> None:
    try:
        move = client.expert(session.session_id, index=turn)
    except ExpertUnavailable as error:
        out.print(plain(str(error), "yellow"))
    else:
        out.print(plain(f"{move.action}   ({move.thought})", "cyan"))


def _leave(client: SyncGatewayClient, session: Session) -> None:
    try:
        client.close(session.session_id)
    except UnknownSession:
        return  # its lease ran out while the player was thinking
