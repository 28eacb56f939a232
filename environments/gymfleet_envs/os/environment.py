"""AgentBench's OS interaction as an environment."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final

from gymfleet_contracts.formats.agentbench_os import AgentbenchOs
from gymfleet_contracts.session import ExpertMove, ForkSupport, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import EngineLost, Environment, Outcome
from gymfleet_envs.os.actions import TOOLS, Bash, action_of, read_action
from gymfleet_envs.os.agentbench import import_tree
from gymfleet_envs.os.expert import next_move
from gymfleet_envs.os.observation import plain, shown
from gymfleet_envs.os.options import OsOptions
from gymfleet_envs.os.sandbox.base import Ran, Sandbox, SandboxError
from gymfleet_envs.os.sandbox.opening import check_backend, open_sandbox
from gymfleet_envs.os.scoring import solved, unsaid
from gymfleet_envs.os.task import OsTask, Script
from gymfleet_envs.os.tasks import agentbench_tasks, generated_tasks
from gymfleet_envs.tasks import TaskSource

_START_S: Final = 8.0
_SEEDS: Final = 32_768  # bash takes that many


class OsInteraction(Environment[OsTask]):
    """Answer a question about a Linux system, or change something in it."""

    name: ClassVar[str] = "os"
    version: ClassVar[str] = "1.1.0"
    summary: ClassVar[str] = "Answer questions about a Linux system, or change it, with a root shell"
    instructions: ClassVar[str] = (
        "You have a root shell on a Linux system. Implement the operations required by me, or answer the question "
        "proposed by me. Each turn, take exactly one of three actions:\n"
        "bash - run bash code; its output is shown to you\n"
        "finish - when you have finished the task\n"
        "answer - when you have got the answer to the question; put it in the pair of parentheses\n"
        "If the output is too long, it is truncated and not complete. Your bash code should not contain any input "
        "operation."
    )
    format: ClassVar[str] = "agentbench_os"
    max_turns: ClassVar[int] = 8
    max_action_chars: ClassVar[int] = 16_384
    stable_observations: ClassVar[bool] = False
    fork: ClassVar[ForkSupport] = ForkSupport.REPLAY
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "answers_a_number": {"count": 0.111, "filter": 0.13},
        "plays_the_gold_of_another_task": {"count": 0.111, "filter": 0.1, "text": 0.019},
    }
    licence: ClassVar[str] = "Apache-2.0, as AgentBench's tasks"
    options: ClassVar[OsOptions] = OsOptions()
    tools: ClassVar[tuple[Tool, ...]] = TOOLS
    blocking: ClassVar[bool] = True
    calls_at_once: ClassVar[int | None] = 32

    def __init__(self) -> None:
        self._task: OsTask
        self._sandbox: Sandbox | None = None
        self._printed: list[str] = []
        self._over = False

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[OsTask]:
        """Generated questions and chores, or AgentBench's: its published tree, or `*.json` files in `data`."""
        check_backend(cls.options)
        return generated_tasks() if data is None else agentbench_tasks(data)

    @classmethod
    def longest_call_s(cls) -> float:
        """The time limit of a check's or preparation's programs, or of a command, plus the time to start a sandbox."""
        return max(cls.options.program_timeout_s, cls.options.command_timeout_s) + _START_S

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Copy AgentBench's tree without the files that no task reads; copy any other source as it is."""
        if not import_tree(source, target):
            super().import_data(source, target)

    @classmethod
    def programs(cls) -> tuple[str, ...]:
        """Bubblewrap, unless the backend is Docker, which is a daemon and not a program."""
        return ("bwrap",) if cls.options.backend == "bubblewrap" else ()

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The call in AgentBench's format."""
        return action_of(tool, arguments)

    def reset(self, task: OsTask, seed: int) -> str:
        """Open a sandbox and run the task's preparation in it."""
        self._task = task
        try:
            self._sandbox = open_sandbox(self.options)
            self._prepare(self._sandbox, task, seed)
            if task.match is None or task.match.regex is not None:  # else no program will run beside the agent's
                self._sandbox.seal()
        except SandboxError as error:
            self.close()
            raise EngineLost(str(error)) from None
        return f"Now, my problem is:\n\n{task.description}"

    def step(self, action: str) -> Outcome:
        """Run a script in the shell, or take the answer."""
        act = read_action(action)
        if act is None:
            return Outcome(AgentbenchOs.complaint, action_valid=False)
        try:
            if isinstance(act, Bash):
                return self._run(act.code)
            self._over = True
            value = float(solved(self._task, act.answer, self._box, self.options.program_timeout_s))
        except SandboxError as error:
            self.close()
            raise EngineLost(str(error)) from None
        said = "finish" if act.answer is None else "answer"
        unseen: list[JsonValue] = list(self._box.unseen)
        info: dict[str, JsonValue] = {"not_seen_by_check": unseen} if unseen else {}
        return Outcome(f"The task is over with your {said}.", reward=value, terminated=True, score=value, info=info)

    def expert(self) -> ExpertMove | None:
        """The next command of the task's plan; after the last one, the answer that it printed."""
        return None if self._over else next_move(self._task, self._printed)

    def state_digest(self) -> str | None:
        """A digest of the files that the session made, changed or removed."""
        try:
            return self._box.digest()
        except SandboxError as error:
            self.close()
            raise EngineLost(str(error)) from None

    def close(self) -> None:
        """End the sandbox and all that runs in it."""
        if self._sandbox is not None:
            self._sandbox.close()

    @property
    def _box(self) -> Sandbox:
        if self._sandbox is None:
            raise SandboxError("the sandbox is closed")
        return self._sandbox

    def _prepare(self, sandbox: Sandbox, task: OsTask, seed: int) -> None:
        """Run the task's scripts. Raises `SandboxError`, also if one fails: the state it leaves is not the task's."""
        timeout_s = self.options.program_timeout_s
        until = time.monotonic() + timeout_s
        for script in task.init:
            ran = sandbox.program(_seeded(script, seed).argv(), max(until - time.monotonic(), 0.0))
            if (fault := unsaid(ran, timeout_s)) is not None:
                raise SandboxError(f"the task's preparation {fault}")
            if ran.code != 0:
                raise SandboxError(f"the task's preparation failed with exit code {ran.code}: {_last_line(ran)}")
        if task.start is not None:
            ran = sandbox.shell(task.start, max(until - time.monotonic(), 0.0))
            if ran.timed_out or ran.shell_ended:
                raise SandboxError("the task's start script did not give the shell back")

    def _run(self, code: str) -> Outcome:
        timeout_s = self.options.command_timeout_s
        ran: Ran = self._box.shell(code, timeout_s)
        self._printed = [*self._printed, plain(ran.output)]
        return Outcome(shown(ran, timeout_s), info={"exit_code": ran.code, "timed_out": ran.timed_out})


def _last_line(ran: Ran) -> str:
    return (plain(ran.output).splitlines() or [""])[-1][:200]


def _seeded(script: Script, seed: int) -> Script:
    """Seed bash's random numbers, so that a preparation draws the same ones for the same seed."""
    if script.language != "bash":
        return script
    return Script(f"RANDOM={seed % _SEEDS}\n{script.code}")


ENVIRONMENT: Final = OsInteraction
