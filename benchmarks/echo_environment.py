"""The trivial environment of the comparing benchmarks; `peers/openenv_server.py` has the same in OpenEnv's form."""

from pathlib import Path
from typing import ClassVar

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.tasks import GeneratedTasks, TaskSource


class Echo(Environment[int]):
    """Echoes the action and counts."""

    name: ClassVar[str] = "echo"
    version: ClassVar[str] = "1"
    summary: ClassVar[str] = "Echoes the action"
    instructions: ClassVar[str] = "Say anything."
    max_turns: ClassVar[int] = 1_000_000_000

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[int]:  # noqa: ARG003 - there is no such data
        """Return tasks that are numbers."""
        return GeneratedTasks(
            cls.name,
            lambda rng, _: rng.randrange(2**30),
            str,
            levels=("only",),
            default_level="only",
            counts={"train": 1000, "validation": 100, "test": 100},
        )

    def reset(self, task: int, seed: int) -> str:  # noqa: ARG002
        """Begin an episode."""
        self.count = 0
        return f"ready {task}"

    def step(self, action: str) -> Outcome:
        """Echo the action."""
        self.count += 1
        return Outcome(f"{action} {self.count}", reward=1.0)


ENVIRONMENT = Echo
