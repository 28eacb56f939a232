"""Both environments of tau-bench: an agent that serves a customer with tools, judged by the records that it leaves."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.session import EnvironmentSpec, ExpertMove, ModelRole, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import BadArguments, Environment, Outcome
from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.tau import played_customer
from gymfleet_envs.tau.benchmark import Domain, PublishedTasks, import_published, published_tasks
from gymfleet_envs.tau.brief import read_brief
from gymfleet_envs.tau.calls import SYNTAX, NoCall, listed, read_call
from gymfleet_envs.tau.customer import STOP, Customer
from gymfleet_envs.tau.database import Overlay
from gymfleet_envs.tau.expert import next_move
from gymfleet_envs.tau.options import TauOptions
from gymfleet_envs.tau.task import RESPOND, TRANSFER, Call, TauTask
from gymfleet_envs.tau.tools import ToolFunction, execute

MAX_TURNS: Final = 30
"""The limit with which upstream runs its agents."""


class TauEnvironment(Environment[TauTask]):
    """The turns of an episode; a subclass has the tools, the policy and the generated tasks of its domain."""

    format: ClassVar[str] = "react"
    max_turns: ClassVar[int] = MAX_TURNS
    max_action_chars: ClassVar[int] = 4096
    options: ClassVar[TauOptions] = TauOptions()
    models: ClassVar[tuple[ModelRole, ...]] = (played_customer.role(MAX_TURNS),)

    domain: ClassVar[Domain]
    functions: ClassVar[Mapping[str, ToolFunction]]
    changing: ClassVar[frozenset[str]]
    """The tools that change records."""
    identity_question: ClassVar[str]
    """The question by which the expert asks who the customer is."""

    def __init__(self) -> None:
        self._task: TauTask
        self._data: Overlay
        self._customer: Customer
        self._talk: tuple[dict[str, str], ...] = ()
        self._found: frozenset[str] = frozenset()
        self._taken: tuple[Call, ...] = ()
        self._score = 0.0
        self._over = False

    @classmethod
    def generated(cls) -> TaskSource[TauTask]:
        """Return the domain's own tasks."""
        raise NotImplementedError

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[TauTask]:
        """Generated worlds, or tau-bench's records, tasks and policy in a directory."""
        return cls.generated() if data is None else published_tasks(data, cls.domain)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Check the files, and copy those that are read."""
        import_published(source, target, cls.domain)

    @classmethod
    def spec(cls, tasks: TaskSource[TauTask]) -> EnvironmentSpec:
        """Return the description, with the policy that was published with the tasks instead of gymfleet's."""
        spec = super().spec(tasks)
        if isinstance(tasks, PublishedTasks) and tasks.policy:
            return spec.model_copy(update={"instructions": instructions(tasks.policy, cls.tools)})
        return spec

    @classmethod
    def asked_models(cls) -> tuple[ModelRole, ...]:
        """The customer, if a model plays it."""
        return cls.models if cls.options.customer == "model" else ()

    @classmethod
    def is_blocking(cls) -> bool:
        """Whether calls wait for a model's answers."""
        return cls.options.customer == "model"

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The call in one line."""
        text = Call.of(tool, **arguments).text
        if len(text) > self.max_action_chars:
            raise BadArguments(f"a call has at most {self.max_action_chars} characters; this one has {len(text)}")
        return text

    def reset(self, task: TauTask, seed: int) -> str:
        """Return the customer's first words. The episode depends only on the task; the seed changes nothing."""
        del seed
        self._task = task
        self._data = Overlay(task.world)
        self._customer = Customer(read_brief(task.instruction))
        self.start_info = {"source": "user"}
        if self.options.customer == "scripted":
            return self._customer.said
        self._talk = played_customer.opening(task.instruction)
        return self._played()

    def step(self, action: str) -> Outcome:
        """Execute a tool, or hear the customer."""
        if self._over:
            return Outcome("The task is over.", score=self._score, terminated=True, action_valid=False)
        try:
            call = read_call(action)
        except NoCall as error:
            return Outcome(str(error), action_valid=False)
        self._taken += (call,)
        if call.name == RESPOND:
            return self._respond(call)
        known = call.name in self.functions
        observation = _unicode(execute(self.functions, self._data, call))
        info: dict[str, JsonValue] = {"source": _unicode(call.name)}
        if call.name == TRANSFER:
            return self._end(observation, info)
        return Outcome(observation, action_valid=known, info=info)

    def expert(self) -> ExpertMove | None:
        """The next move of a clerk who knows the gold calls."""
        if self._over:
            return None
        waiting = self.options.customer == "scripted" and bool(self._customer.pending)
        return next_move(self._task, self._taken, self.changing, self.identity_question, is_waiting=waiting)

    def state_digest(self) -> str:
        """A digest of the changed records, the outputs that were said, and what the customer has said and heard."""
        return hashlib.sha256(self.state_key().encode(errors="surrogatepass")).hexdigest()

    def state_key(self) -> str:
        """The same state as text; records that the agent only looked up do not count."""
        state = (sorted(self._data.changes().items()), sorted(self._found), self._customer.state, self._talk)
        return repr((*state, self._over))

    def snapshot(self) -> Self:
        """A copy that shares the changed records until they change again; all else is immutable."""
        twin = copy.copy(self)
        twin._data = self._data.fork()  # noqa: SLF001 - its own class
        return twin

    def _respond(self, call: Call) -> Outcome:
        content = call.values().get("content")
        if not isinstance(content, str):
            return Outcome(f'{RESPOND} takes one text: {RESPOND} {{"content": "..."}}.', action_valid=False)
        said = content.lower().replace(",", "")
        self._found |= {output for output in self._task.outputs if output.lower() in said}
        info: dict[str, JsonValue] = {"source": "user"}
        if self.options.customer == "scripted":
            self._customer = self._customer.answer(content)
            reply = self._customer.said
        else:
            self._talk += ({"role": "user", "content": _unicode(content)},)
            reply = self._played()
        return self._end(reply, info) if STOP in reply else Outcome(reply, info=info)

    def _played(self) -> str:
        """Ask the model that plays the customer."""
        reply = self.ask(played_customer.ROLE_NAME, self._talk, max_tokens=played_customer.MAX_TOKENS)
        self._talk += ({"role": "assistant", "content": reply},)
        return reply

    def _end(self, observation: str, info: dict[str, JsonValue]) -> Outcome:
        self._over = True
        gold = records_after(self._task, self.functions)
        right = self._data.changes() == gold.changes() and self._found.issuperset(self._task.outputs)
        self._score = float(right)
        return Outcome(observation, reward=self._score, terminated=True, score=self._score, info=info)


def records_after(task: TauTask, functions: Mapping[str, ToolFunction]) -> Overlay:
    """Return fresh records after the gold calls, except for the transfer and the responses."""
    data = Overlay(task.world)
    for call in task.actions:
        if call.name not in {TRANSFER, RESPOND}:
            execute(functions, data, call)
    return data


def instructions(policy: str, tools: Sequence[Tool]) -> str:
    """Return the rules for the model: the policy, the tools, and how to call one."""
    return (
        f"{policy.strip()}\n\nTools:\n{listed(tools)}\n\n{SYNTAX}: "
        f'{RESPOND} {{"content": "..."}}. You see what the customer answers, or what the tool returns. The '
        "conversation ends when the customer is satisfied or was transferred."
    )


def _unicode(text: str) -> str:
    """Return the text without halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    return text.encode(errors="replace").decode()
