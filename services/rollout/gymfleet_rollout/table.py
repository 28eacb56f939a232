"""A game that several players of a group share: one session, in which each seat waits for its turn."""

import asyncio

from gymfleet_contracts.session import Game, Session, StepResult
from gymfleet_contracts.trajectory import FinishReason

from gymfleet_rollout.errors import StrategyError


class Table:
    """The game of one session, as its players here know it.

    Raises `StrategyError` from `turn` and `after` when the play is over while a seat waits.
    """

    def __init__(self, session: Session, game: Game) -> None:
        self.index = session.index
        """The number of steps that all players together have taken."""
        self.game = game
        self.taken: set[str] = set()
        """The seats that are taken."""
        self.left = False
        """Whether a player could not go on, so that none can."""
        self._terminated = session.terminated
        self._truncated = session.truncated
        self._told = dict.fromkeys(game.seats, 0.0)
        """The part of its reward that each seat has been told."""
        self._closed = False
        self._changed = asyncio.Event()

    @property
    def seats(self) -> tuple[str, ...]:
        """Return the players' names."""
        return tuple(self.game.seats)

    @property
    def over(self) -> bool:
        """Return whether the environment ended the game."""
        return self._terminated or self._truncated

    @property
    def ended(self) -> FinishReason | None:
        """Return why no player can go on; None while the game goes on."""
        if self._terminated:
            return FinishReason.TERMINATED
        if self._truncated:
            return FinishReason.ENV_TURN_LIMIT
        return FinishReason.LEFT if self.left else None

    async def turn(self, seat: str) -> None:
        """Wait until it is the seat's turn, or nobody can move."""
        while not (self.over or self.left or self.game.to_move == seat):
            if self._closed:
                raise StrategyError("the play was over while a player of a game waited for its turn")
            await self._changed.wait()

    async def after(self, seat: str, step: StepResult) -> StepResult:
        """Note the seat's step, wait for its next turn, and return the step with its final result for the seat.

        A player's gains and losses from the moves of others count for its own last step.
        """
        if step.game is None:
            raise StrategyError("the environment no longer says what the players of its game see")
        self.index, self.game = step.index + 1, step.game
        self._terminated, self._truncated = step.terminated, step.truncated
        self._change()
        await self.turn(seat)
        own = self.game.seats[seat]
        reward, self._told[seat] = own.reward - self._told[seat], own.reward
        return step.model_copy(
            update={
                "observation": own.observation, "reward": reward, "score": own.score, "terminated": self._terminated,
                "truncated": self._truncated,
            }
        )  # fmt: skip

    def leave(self) -> None:
        """Keep players from waiting for one that cannot go on."""
        if not self.over:
            self.left = True
            self._change()

    def close(self) -> None:
        """Wake the players that wait: the play is over."""
        self._closed = True
        self._change()

    def _change(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
