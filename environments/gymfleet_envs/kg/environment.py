"""AgentBench's knowledge graph as an environment."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from gymfleet_contracts.formats.agentbench_kg import AgentbenchKg
from gymfleet_contracts.session import ExpertMove, Tool
from pydantic import JsonValue

from gymfleet_envs.environment import Environment, Outcome
from gymfleet_envs.kg.actions import TOOLS, FinalAnswer, action_of, read_action
from gymfleet_envs.kg.base import KnowledgeBase
from gymfleet_envs.kg.expert import next_move
from gymfleet_envs.kg.graph import Graph
from gymfleet_envs.kg.options import KgOptions
from gymfleet_envs.kg.program import NUMBER_TYPE, Program, Variable, topics
from gymfleet_envs.kg.scoring import f1
from gymfleet_envs.kg.sources import base_of, import_files, tasks_of
from gymfleet_envs.kg.task import KgTask
from gymfleet_envs.kg.tools import Misspelt, Refused, carry_out
from gymfleet_envs.tasks import TaskSource

_LISTING: Final = ("get_relations", "get_attributes")
_OVER: Final = "The task is over."


class KnowledgeGraph(Environment[KgTask]):
    """Find the set of entities that answers a question."""

    name: ClassVar[str] = "kg"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Answer questions over a knowledge graph with seven tools (AgentBench)"
    instructions: ClassVar[str] = (
        "You answer questions with the knowledge that is stored in a knowledge base. You query it with tools:\n"
        "get_relations(variable) - list the relations that lead on from an entity or a variable\n"
        "get_neighbors(variable, relation) - make a variable of all entities that one of these relations leads to\n"
        "intersection(variable1, variable2) - make a variable of what is in both of two variables of the same type\n"
        "get_attributes(variable) - list the numerical attributes of a variable, where an extreme is asked for\n"
        "argmax(variable, attribute) - make a variable of the entity with the greatest value of an attribute\n"
        "argmin(variable, attribute) - make a variable of the entity with the least value of an attribute\n"
        "count(variable) - make a variable of the number of entities in a variable\n"
        "Entities are those that the question lists. Variables are numbered: #0 is the first one, #1 the second one, "
        "and so on. Once you have found the answer, respond with 'Final Answer: #id', where id is the number of the "
        "variable that holds it. You can only take one action at a time, and at most 15 actions."
    )
    format: ClassVar[str] = "agentbench_kg"
    max_turns: ClassVar[int] = 15
    max_action_chars: ClassVar[int] = 4096
    licence: ClassVar[str] = "Apache-2.0; benchmark questions: AgentBench (Apache-2.0)"
    options: ClassVar[KgOptions] = KgOptions()
    tools: ClassVar[tuple[Tool, ...]] = TOOLS
    calls_at_once: ClassVar[int | None] = 64
    floors: ClassVar[Mapping[str, Mapping[str, float]]] = {
        "answers_the_first_neighbours": {
            "one_hop": 0.25, "two_hops": 0.02, "three_hops": 0.03, "superlative": 0.02, "intersection": 0.03,
        },
        "compares_anything": {"one_hop": 0.2, "three_hops": 0.03, "superlative": 0.02},
        "answers_everything": {
            "one_hop": 0.03, "two_hops": 0.05, "three_hops": 0.05, "superlative": 0.03, "intersection": 0.05,
        },
        "counts_anything": {"count": 0.1},
        "leaves_out_the_last_step": {"two_hops": 0.01, "superlative": 0.25, "intersection": 0.26},
    }  # fmt: skip

    def __init__(self) -> None:
        self._task: KgTask
        self._base: KnowledgeBase
        self._entities: dict[str, str] = {}
        self._variables: tuple[Variable, ...] = ()
        self._listed: frozenset[str] = frozenset()
        self._over = False
        self._score = 0.0

    @classmethod
    def task_source(cls, data: Path | None) -> TaskSource[KgTask]:
        """Questions about generated worlds or about the triples in `data`, or AgentBench's over the endpoint."""
        return tasks_of(data, cls.options)

    @classmethod
    def import_data(cls, source: Path, target: Path) -> None:
        """Load triples into a store on disk; copy AgentBench's questions and its ontology of Freebase's relations."""
        import_files(source, target)

    @classmethod
    def is_blocking(cls) -> bool:
        """Whether there is an endpoint. A graph in this process answers at once."""
        return cls.options.endpoint is not None

    @classmethod
    def longest_call_s(cls) -> float:
        """The time of two queries to an endpoint, each with the wait for a connection and the opening of one."""
        return 3 * cls.options.query_timeout_s if cls.options.endpoint is not None else 0.0

    def action_of(self, tool: str, arguments: Mapping[str, JsonValue]) -> str:
        """The call in AgentBench's format."""
        return action_of(tool, arguments)

    def reset(self, task: KgTask, seed: int) -> str:
        """Start without variables. The task determines everything; the seed changes nothing."""
        del seed
        self._task = task
        self._base = base_of(task.source, self.options)
        self._entities = {name.strip(): one for name, one in task.entities}
        self.start_private = {"answer": [*sorted(task.gold)]}
        return task.prompt

    def step(self, action: str) -> Outcome:
        """Carry out a call, or take the answer."""
        if self._over:
            return Outcome(_OVER, score=self._score, terminated=True, action_valid=False)
        wanted = read_action(action)
        if wanted is None:
            return Outcome(AgentbenchKg.complaint, action_valid=False)
        if isinstance(wanted, FinalAnswer):
            return self._answered(wanted.number)
        try:
            observation, made = carry_out(wanted, self._base, self._variables, self._entities)
        except Misspelt as error:
            return Outcome(str(error), action_valid=False)
        except Refused as error:
            return Outcome(str(error))
        if made is not None:
            self._variables = (*self._variables, made)
        elif wanted.name in _LISTING:
            self._listed |= {f"{wanted.name}({wanted.arguments[0]})"}
        return Outcome(observation)

    def expert(self) -> ExpertMove | None:
        """The next of the gold calls; None if the published ones cannot be made."""
        if self._over or self._task.program is None:
            return None
        names: dict[Program | str, str] = {one: name for name, one in self._entities.items()}
        return next_move(self._task.program, self._variables, self._listed, names)

    def admissible_actions(self) -> Sequence[str] | None:
        """Return the calls that are not refused; None with an endpoint, to save queries."""
        if self._over:
            return []
        if not isinstance(self._base, Graph):
            return None
        base = self._base
        known = [(name, self._entities[name]) for name in self._entities]
        sets = [(f"#{number}", one) for number, one in enumerate(self._variables) if one.type != NUMBER_TYPE]
        calls = [f"get_relations({name})" for name, _ in (*known, *sets)]
        for name, what in (*known, *((name, one.program) for name, one in sets)):
            calls += [f"get_neighbors({name}, {relation})" for relation in base.relations(what)]
        for place, (name, one) in enumerate(sets):
            calls += [f"get_attributes({name})", f"count({name})"]
            calls += [f"intersection({name}, {other})" for other, two in sets[place + 1 :] if two.type == one.type]
            for attribute in base.attributes(one.program):
                calls += [f"argmax({name}, {attribute})", f"argmin({name}, {attribute})"]
        return [*calls, *(f"Final Answer: #{number}" for number in range(len(self._variables)))]

    def state_key(self) -> str:
        """The contents of the variables, in their order; with an endpoint, the calls that made them."""
        if not isinstance(self._base, Graph):
            return repr((self._over, self._variables))
        held = [(one.type, sorted(self._base.everything(one.program)), sorted(topics(one.program)))
                for one in self._variables]  # fmt: skip
        return hashlib.sha256(repr((self._over, held)).encode()).hexdigest()

    def snapshot(self) -> Self:
        """A shallow copy: variables are immutable, and the graph is shared."""
        return copy.copy(self)

    def _answered(self, number: int) -> Outcome:
        if number >= len(self._variables):
            self._over = True
            return Outcome(f"There is no variable #{number}. {_OVER}", terminated=True, action_valid=False)
        members = self._base.members(self._variables[number].program)
        self._over = True
        self._score = 0.0 if members is None else f1(members, self._task.gold)
        return Outcome(_OVER, reward=float(members == self._task.gold), terminated=True, score=self._score)


ENVIRONMENT: Final = KnowledgeGraph
