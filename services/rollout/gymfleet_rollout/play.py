"""The `PlayContext` that strategies play with: open, fork, ask for replies, act, export."""

import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from gymfleet_client.errors import ActionTooLarge, ClientError, ExpertUnavailable, ForkUnsupported, InvalidToolCall
from gymfleet_contracts.observation import ImageFile
from gymfleet_contracts.recipe_sections import StrategyFacts
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.search import SearchTree
from gymfleet_contracts.session import StepResult
from gymfleet_contracts.trajectory import AGENT, FinishReason, ReplyEnd, StateValue, Turn
from gymfleet_kit.chat.template import UnusableTemplate

from gymfleet_rollout import metrics
from gymfleet_rollout.answers import KNOWN, Answers
from gymfleet_rollout.budget import BudgetSpent, NoRoom, Spending
from gymfleet_rollout.contexts import Contexts, images_before, tokens_before
from gymfleet_rollout.errors import EvaluationFailed, StrategyError
from gymfleet_rollout.group_sessions import GroupSessions
from gymfleet_rollout.handed_in import HandedIn
from gymfleet_rollout.inference.base import InferenceError
from gymfleet_rollout.node_values import NodeValues
from gymfleet_rollout.parts import Parts
from gymfleet_rollout.replies import Context, Prompt, Replies, next_prompt
from gymfleet_rollout.search import TreeRecorder
from gymfleet_rollout.seen import Prompted, Seen, ShownImage, marked_text
from gymfleet_rollout.shown import Beside
from gymfleet_rollout.suited import require_suited
from gymfleet_rollout.table import Table
from gymfleet_rollout.tree import Node, Reply

_NO_FAILURE: Final = (ActionTooLarge, ExpertUnavailable, ForkUnsupported, InvalidToolCall)
"""Errors that are answers to a question: a strategy may go on without what it asked for."""
NO_ROOM: Final = "hints without room"
"""The name of the count in the record of a search."""
T = TypeVar("T")


class Play:
    """One attempt at the samples of a group that are played together: the `PlayContext` of a strategy.

    Args:
        sample: the only sample that is played here; None if a strategy plays several together.
    """

    def __init__(
        self, parts: Parts, group: GroupRequest, sample: int | None, spending: Spending, facts: StrategyFacts
    ) -> None:
        if facts.state_keys:
            group = group.model_copy(update={"task": group.task.model_copy(update={"state_keys": True})})
        self._facts = facts
        self._parts = parts
        self.group = group
        self._sample = sample
        self._spending = spending
        self._limits = group.limits
        self._answers = Answers()
        self._replies = Replies(parts, group, sample, spending)
        self._seen = Seen(parts.reader, parts.sessions, group.limits.step_timeout_s)
        self._contexts = Contexts(parts, group, self._seen)
        self._sessions = GroupSessions(parts, group, together=sample is None)
        self._beside = Beside(parts, group)
        self._heads: dict[str, Node] = {}
        """The newest node of each branch; a branch has its own session, or in a game a seat."""
        self._tree = TreeRecorder()
        self._values: dict[str, StateValue] = {}
        self._node_values = NodeValues(parts, group, spending, self._seen)
        self._num_opened = 0
        self._closed = False
        self._budget_spent: BudgetSpent | None = None
        self.failure: Exception | None = None
        """The first failure of the machinery."""
        self.newest: Node | None = None
        self.handed_in = HandedIn(group, together=sample is None)

    async def open(self) -> Node:
        """Open a session of the group's task and return its root."""
        self._require_running()
        branch = f"@{self._num_opened}" if self._num_opened else ""
        self._num_opened += 1
        require_suited(self.group, self._facts, self._parts.spec)
        session = await self._noted(self._sessions.open())
        beside = await self._shown(session.session_id, session.index)
        observation = session.observation + beside
        shown = await self._noted(self._seen.shown(session.session_id, session.parts))
        prompt = self._contexts.prompt(None, marked_text(observation, session.parts, shown), shown)
        root = Node(
            id=self._id(0, branch), parent_id=None, depth=0, observation=observation, beside=beside,
            score=session.score, ended=None, task=session.task, session_id=session.session_id, index=0,
            branch=branch, prompt=prompt, num_tokens=0, parts=session.parts, shown=shown, state_key=session.state_key,
            sealed=session.sealed,
            table=None if session.game is None else Table(session, session.game),
        )  # fmt: skip
        self._keep(root)
        self._contexts.require_fitting(prompt)
        return root

    async def sit(self, table: Node, seat: str) -> Node:
        """Return the root of one player's episode of a game, once it is that player's turn."""
        self._require_running()
        game = table.table
        if game is None or table.seat is not None:
            raise StrategyError(f"node {table.id} is not the beginning of a game")
        if seat not in game.seats or seat in game.taken:
            free = ", ".join(name for name in game.seats if name not in game.taken) or "none"
            raise StrategyError(f"the seat {seat!r} is not free; free: {free}")
        if self._sample is not None:
            raise StrategyError("a game gives several episodes: leave out facts.by_sample")
        game.taken.add(seat)
        table.moved_on = True
        self._heads.pop(table.branch, None)
        await game.turn(seat)
        own, branch = game.game.seats[seat], f"{table.branch}:{seat}"
        prompt = self._contexts.prompt(None, own.observation)
        root = Node(
            id=self._id(0, branch), parent_id=None, depth=0, observation=own.observation, score=own.score,
            ended=game.ended, task=table.task, session_id=table.session_id, index=game.index, branch=branch,
            prompt=prompt, num_tokens=0, sealed=table.sealed, seat=seat, table=game,
        )  # fmt: skip
        self._keep(root)
        self._contexts.require_fitting(prompt)
        return root

    async def fork(self, node: Node, count: int = 1) -> list[Node]:
        """Return copies of a node, each in its own session; the node itself can still be played on."""
        self._require_open(node)
        if node.seat is not None:
            raise StrategyError("a player of a game cannot be forked: others share its session")
        first = node.num_forks + 1
        node.num_forks += count
        sessions = await self._noted(self._sessions.fork(node, count))
        forks = []
        for number, session in enumerate(sessions, first):
            fork = Node(
                id=node.id, parent_id=node.parent_id, depth=node.depth, observation=node.observation,
                beside=node.beside, score=node.score, ended=None, task=node.task,
                session_id=session.session_id, index=node.index,
                branch=f"{node.branch}-{node.depth}.{number}", prompt=node.prompt, num_tokens=node.num_tokens,
                parts=node.parts, shown=node.shown, state_key=node.state_key, sealed=node.sealed,
                replacement=node.replacement, turn=node.turn, parent=node.parent, greedy=node.greedy,
            )  # fmt: skip
            self._keep(fork)
            forks.append(fork)
        return forks

    def restart(self, node: Node, text: str) -> None:
        """Replace the context of a node: the next prompt is the instructions and this text alone."""
        if node.exported:
            raise StrategyError(f"node {node.id} was exported already")
        self._require_open(node, unless=FinishReason.CONTEXT_LENGTH)
        if self._parts.chat.replaces:
            raise StrategyError('the template writes the contexts: leave out rollout.template.context = "replaced"')
        replacement = self._contexts.prompt(None, text)
        if len(replacement.token_ids) >= self._contexts.max_tokens:
            raise StrategyError(
                f"the new prompt has {len(replacement.token_ids)} tokens, the context {self._contexts.max_tokens}"
            )
        node.replacement, node.ended = replacement, None
        self._remember(node)

    async def propose(
        self, node: Node, count: int = 1, hint: str = "", role: str = AGENT, *, greedy: bool = False
    ) -> list[Reply]:
        """Return replies of the policy to a node, sampled independently, or the likeliest."""
        prompt, context, max_tokens = await self._asked(node, hint, role)
        return await self._noted(self._replies.sampled(node, prompt, context, count, max_tokens, role, greedy=greedy))

    async def ask(self, node: Node, question: str, count: int = 1, *, role: str) -> list[str]:
        """Return answers of the policy to a question about a node, sampled independently unless they are known."""
        prompt, context, max_tokens = await self._asked(node, question, role)

        async def sample(lacking: int) -> list[str]:
            replies = self._replies.sampled(node, prompt, context, lacking, max_tokens, role)
            return [reply.text for reply in await self._noted(replies)]

        policy = self._parts.policy
        answers, num_known = await self._answers.of(context, role, count, lambda: policy.live_version, sample)
        self.count(KNOWN, num_known)
        return answers

    async def _asked(self, node: Node, hint: str, role: str) -> tuple[Prompt, Context, int]:
        """Return the prompt at a node, the whole context that the policy is given, and the tokens of a reply."""
        self._require_open(node)
        if self._facts.expert:
            raise StrategyError("the policy does not reply where the strategy says facts.expert")
        if role != AGENT and role not in self._facts.roles:
            known = ", ".join((AGENT, *self._facts.roles))
            raise StrategyError(f"the role {role!r} is not in facts.roles; known: {known}")
        if hint and node.replacement is not None and not self._parts.chat.replaces:
            raise StrategyError("the context was replaced by a text of the strategy's: put the hint into that")
        prompt = next_prompt(node)
        if hint:
            hinted = f"{marked_text(node.observation, node.parts, node.shown)}\n\n{hint}"
            replacement = self._contexts.replacement(node.path(), hinted, node.shown)
            if replacement is not None:
                prompt = Prompt(replacement, 0, replaces=True)
            else:
                prompt = Prompt(self._contexts.prompt(node.turn, hinted, node.shown), node.num_tokens, replaces=False)
        room = self._contexts.max_tokens - prompt.num_tokens
        if room < 1:
            self.count(NO_ROOM)
            spent = NoRoom(f"the hint leaves no room for a reply: with it, the prompt has {prompt.num_tokens} tokens")
            self._budget_spent = self._budget_spent or spent
            raise spent
        return prompt, await self._context(node, prompt), min(room, self._limits.max_response_tokens)

    async def _context(self, node: Node, prompt: Prompt) -> Context:
        """Return everything that the policy is given before its reply to a node."""
        before = [] if prompt.replaces else tokens_before(node)
        images = [] if prompt.replaces or self._parts.reader is None else images_before(node)
        images += ((len(before), image) for image in prompt.added.images)
        return Context([*before, *prompt.added.token_ids], await self._seen.placed(images))

    async def demonstrate(self, node: Node) -> Reply | None:
        """Return the expert's reply to a node, or None if there is none, which ends the episode."""
        if not self._facts.expert:
            raise StrategyError("the expert replies only where the strategy says facts.expert")
        if node.ended is not None:
            return None
        self._require_open(node)
        began = time.perf_counter()
        limit = self._limits.step_timeout_s
        try:
            async with self._session_of(node):
                move = await self._noted(
                    self._parts.sessions.expert(node.session_id, index=node.index, timeout_s=limit)
                )
        except ExpertUnavailable:
            if not node.depth:
                raise
            node.ended = FinishReason.EXPERT_STUCK
            return None
        reply = self._written(node, move.thought, move.action, began)
        if reply is None and not node.depth:
            raise StrategyError(
                "the expert's first reply is too long for limits.max_response_tokens, or for the context: raise them"
            )
        return reply

    def write(self, node: Node, thought: str, action: str) -> Reply | None:
        """Return a reply that the strategy itself writes, or None if it does not fit, which ends the episode."""
        if not self._facts.expert:
            raise StrategyError("replies are written only where the strategy says facts.expert")
        if node.ended is not None:
            return None
        self._require_open(node)
        return self._written(node, thought, action, time.perf_counter())

    def _written(self, node: Node, thought: str, action: str, began: float) -> Reply | None:
        chat = self._parts.chat
        try:
            token_ids = chat.write(self._parts.format.compose(thought, action, thinks=chat.dialect.thinks))
        except UnusableTemplate as error:
            raise StrategyError(str(error)) from None
        prompt = next_prompt(node)
        room = self._contexts.max_tokens - prompt.num_tokens
        if len(token_ids) > min(room, self._limits.max_response_tokens):
            node.ended = FinishReason.EXPERT_STUCK
            return None
        return self._replies.read(node, prompt, token_ids, None, (), ReplyEnd.STOP, time.perf_counter() - began)

    async def admissible(self, node: Node) -> list[str] | None:
        """Return the actions that are possible at a node; None if the environment does not know all of them."""
        self._require_open(node)
        if node.seat is not None or not self._parts.spec.capabilities.admissible_actions:
            raise StrategyError(f"{node.task.env} does not list the actions that are possible")
        async with self._session_of(node):
            listed = await self._noted(self._beside.admissible(node.session_id, node.index))
        return listed.actions if listed is not None and listed.complete else None

    async def act(self, node: Node, reply: Reply) -> Node:
        """Carry out a reply and return the node that it leads to. To try several, fork the node first."""
        self._require_reply_to(node, reply)
        async with self._session_of(node):
            return await self._acted(node, reply)

    async def _acted(self, node: Node, reply: Reply) -> Node:
        began = time.perf_counter()
        action, refusal = await self._action_of(node, reply)
        result = None if action is None else await self._step(node, action)
        seconds = time.perf_counter() - began
        if result is not None and node.seat is not None and node.table is not None:
            result = await node.table.after(node.seat, result)
        if result is None:
            what: dict[str, Any] = {"action_valid": False}
        else:
            what = {
                "action_valid": result.action_valid, "reward": result.reward, "terminated": result.terminated,
                "truncated": result.truncated, "info": result.info, "sealed": result.sealed,
            }  # fmt: skip
        what |= {"action": action, "format_valid": reply.parsed.well_formed and not refusal}
        turn = self._turn(node, reply, environment_s=seconds, **what)
        shown: tuple[ShownImage, ...] = ()
        if result is None:
            observation, beside = refusal or self._contexts.complaint(action), node.beside
        else:
            over = _ended(result)
            beside = "" if over else await self._shown(node.session_id, node.index + 1)
            shown = () if over else await self._noted(self._seen.shown(node.session_id, result.parts))
            observation = result.observation
        return self._moved(node, reply, turn, observation + beside, result, beside, shown)

    def answer(self, node: Node, reply: Reply, text: str) -> Node:
        """Reply to the policy with a text, instead of carrying out its reply, and return the node it leads to."""
        self._require_reply_to(node, reply)
        turn = self._turn(node, reply, action=None, format_valid=True, action_valid=True)
        return self._moved(node, reply, turn, text, None, node.beside)

    async def evaluate(self, nodes: Sequence[Node]) -> list[float]:
        """Return the value that the reward service gives each node."""
        self._require_running()
        if not self._facts.evaluates:
            raise StrategyError("nodes are valued only where the strategy says facts.evaluates")
        values = await self._noted(self._node_values.of(nodes))
        self._tree.valued_by = self._node_values.components
        for node, value in zip(nodes, values, strict=True):
            self._tree.note(node, value, None)
        return values

    def note(self, node: Node, *, value: float | None = None, visits: int | None = None) -> None:
        """Put the strategy's value and visits of a node into the record of the search."""
        self._tree.note(node, value, visits)

    def count(self, what: str, number: int = 1) -> None:
        """Count something in the record of the search."""
        self._tree.count(what, number)

    def value(self, node: Node, mean: float, samples: int) -> None:
        """Set the value of a state: the mean total reward of `samples` episodes that were played on from it."""
        if not self._facts.values:
            raise StrategyError("states are valued only where the strategy says facts.values")
        if samples < 1:
            raise StrategyError(f"the value of node {node.id} is of {samples} episodes")
        self._tree.note(node, mean, samples)
        self._values[node.id] = StateValue(mean=mean, samples=samples)

    async def release(self, node: Node) -> None:
        """Close the session of a node that is not played on."""
        if node.seat is not None or node.table is not None:
            raise StrategyError("the session of a game is not released by one of its players")
        node.moved_on = True
        self._heads.pop(node.branch, None)
        await self._sessions.release(node)

    def export(self, leaf: Node, *, selected: bool = False) -> None:
        """Export the episode that ends at a leaf as a sample, unless the budget ended it before its first turn."""
        self.handed_in.add(leaf, "selected" if selected else "", self._budget_spent)

    # --- for the player

    def turns(self, leaf: Node) -> tuple[Turn, ...]:
        """Return the turns that lead to a leaf, with the known values of their states and nodes."""
        found: list[Turn] = []
        node: Node | None = leaf
        while node is not None and node.turn is not None:
            known = {"value": self._values.get(node.parent_id or ""), "node_value": self._tree.values.get(node.id)}
            update = {name: value for name, value in known.items() if value is not None}
            found.append(node.turn.model_copy(update=update) if update else node.turn)
            node = node.parent
        return tuple(found[::-1])

    def search_tree(self, attempt: int, samples: Sequence[int]) -> SearchTree | None:
        """Return the record of the nodes; its leaves were exported as these samples."""
        for sample, (leaf, chosen) in zip(samples, self.handed_in.leaves, strict=False):
            self._tree.exported(leaf, sample, selected=chosen == "selected")
        return self._tree.tree(self.group, attempt, self._spending, self._sessions)

    def export_open(self, spent: BudgetSpent) -> None:
        """Export the open episodes after the budget was spent: each episode that was begun, once."""
        self.handed_in.add_open(self._heads.values(), spent)

    def export_rejected(self) -> None:
        """Export, if requested, what was tried and not exported: as many episodes as a group has room for."""
        self._tree.count("rejected and left out", self.handed_in.add_rejected(self._budget_spent))

    def final_prompt(self, leaf: Node) -> tuple[int, ...]:
        """Return what the next prompt would have added if the recipe cut the episode, at most one whole context."""
        cut = leaf.ended is not None and leaf.ended.cut_by_recipe and leaf.depth > 0
        return leaf.prompt.token_ids[: self._contexts.max_tokens] if cut else ()

    def files(self, turns: Sequence[Turn]) -> tuple[ImageFile, ...]:
        """Return the files of the images that the prompts of turns show."""
        return self._seen.files(turns)

    async def close(self) -> None:
        """Close every session. Tasks that are still running can open no more."""
        self._closed = True
        for node in self._heads.values():
            if node.table is not None:
                node.table.close()
        await self._sessions.close()

    @asynccontextmanager
    async def _session_of(self, node: Node) -> AsyncIterator[None]:
        """Keep the session of a node open during the block."""
        await self._noted(self._sessions.take(node))
        try:
            yield
        finally:
            await self._sessions.give_back(node)

    def _require_reply_to(self, node: Node, reply: Reply) -> None:
        self._require_open(node)
        if reply.node_id != node.id:
            raise StrategyError(f"a reply to node {reply.node_id} cannot be acted upon at node {node.id}")

    def _turn(self, node: Node, reply: Reply, **what: Any) -> Turn:
        if self._sample is None:
            what |= {"node": self._id(node.depth + 1, node.branch), "parent": node.id}
        turn = Turn(
            observation=node.observation,
            parts=node.parts,
            role=reply.role,
            context="replaced" if reply.replaces and node.depth else "continued",
            prompt_token_ids=reply.prompt,
            prompt_images=reply.images,
            response_token_ids=reply.token_ids,
            response_logprobs=reply.logprobs,
            policy_versions=reply.versions,
            text=reply.text,
            reply_end=reply.end,
            thought=reply.parsed.thought,
            notes=dict(reply.parsed.notes),
            num_reasoning_tokens=reply.num_reasoning_tokens,
            num_prefilled_tokens=reply.num_prefilled_tokens,
            generate_s=reply.seconds,
            state_key=node.state_key,
            **what,
        )
        metrics.TURNS.inc()
        metrics.GENERATE_SECONDS.observe(turn.generate_s)
        return turn

    def _moved(
        self,
        node: Node,
        reply: Reply,
        turn: Turn,
        observation: str,
        result: StepResult | None,
        beside: str,
        shown: tuple[ShownImage, ...] = (),
    ) -> Node:
        """Return the node that a turn leads to."""
        node.moved_on = True
        depth, replaced = node.depth + 1, turn.context == "replaced"
        child = Node(
            id=self._id(depth, node.branch), parent_id=node.id, depth=depth, observation=observation, beside=beside,
            score=node.score if result is None else result.score, ended=_ended(result), task=node.task,
            session_id=node.session_id, index=node.index + (result is not None), branch=node.branch, prompt=Prompted(),
            seat=node.seat, table=node.table,
            num_tokens=(0 if replaced else node.num_tokens) + len(reply.prompt) + len(reply.token_ids),
            parts=() if result is None else result.parts, shown=shown,
            state_key=node.state_key if result is None else result.state_key, sealed=node.sealed,
            turn=turn, parent=node, context=[] if replaced else tokens_before(node),
            greedy=node.greedy or reply.greedy,
        )  # fmt: skip
        node.context = None  # handed on: there is one list for each session, not one for each node
        context = tokens_before(child)
        context += reply.prompt
        context += reply.token_ids
        if child.ended is None:
            text = marked_text(child.observation, child.parts, shown)
            child.prompt = self._contexts.prompt(turn, text, shown)
            child.replacement = self._contexts.replacement(child.path(), text, shown)
            if depth >= self._limits.max_turns:
                child.ended = FinishReason.MAX_TURNS
            elif next_prompt(child).num_tokens >= self._contexts.max_tokens:
                child.ended = FinishReason.CONTEXT_LENGTH
        if child.table is not None:
            self._at_table(child, child.table)
        self._keep(child)
        return child

    def _keep(self, node: Node) -> None:
        self._heads[node.branch] = self.newest = node
        self._sessions.arrived(node)
        self.handed_in.reached(node)
        self._remember(node)

    def _remember(self, node: Node) -> None:
        if self._sample is None:  # else nobody asks for a tree
            self._tree.add(node)

    @staticmethod
    def _at_table(node: Node, table: Table) -> None:
        """Update a player's new node with what the others did, and tell them if the player cannot go on."""
        node.index = table.index
        if table.left and node.ended is None:
            node.ended = FinishReason.LEFT
        elif node.ended is not None:
            table.leave()

    def _require_running(self) -> None:
        if self._closed:
            raise StrategyError("the play is over")

    def _require_open(self, node: Node, *, unless: FinishReason | None = None) -> None:
        self._require_running()
        if node.seats and node.seat is None:
            raise StrategyError(f"node {node.id} is a game of {', '.join(node.seats)}: sit down at a seat to play it")
        if node.moved_on:
            raise StrategyError(f"node {node.id} was played on: fork it before acting to try something else")
        if node.ended not in (None, unless):
            raise StrategyError(f"the episode is over at node {node.id}: {node.ended.value}")

    async def _noted(self, call: Coroutine[Any, Any, T]) -> T:
        """Return a call's result within the time limit, and remember its failure: going on does not hide it."""
        try:
            return await (self._spending.timed(call) if self._spending.is_timed else call)
        except BudgetSpent as spent:
            self._budget_spent = spent
            raise
        except _NO_FAILURE:
            raise
        except (ClientError, InferenceError, EvaluationFailed, TimeoutError) as error:
            self.failure = self.failure or error
            raise

    async def _action_of(self, node: Node, reply: Reply) -> tuple[str | None, str]:
        """Return the action of a reply; for a call that the environment refuses, None and the reason."""
        if (call := reply.parsed.call) is None:
            return reply.action, ""
        timeout_s = self._limits.step_timeout_s
        try:
            return await self._noted(self._parts.sessions.tool_action(node.session_id, call, timeout_s=timeout_s)), ""
        except (InvalidToolCall, ActionTooLarge) as error:
            return None, f"Invalid call: {error.problem.detail}"

    async def _shown(self, session_id: str, index: int) -> str:
        return await self._noted(self._beside.text(session_id, index))

    async def _step(self, node: Node, action: str) -> StepResult | None:
        """Step the environment; return None, without stepping, when the action is too long."""
        if len(action) > self._parts.spec.max_action_chars:
            return None
        began = time.perf_counter()
        try:
            result = await self._noted(self._stepped(node, action))
        except ActionTooLarge:
            return None
        metrics.ENVIRONMENT_SECONDS.observe(time.perf_counter() - began)
        return result

    async def _stepped(self, node: Node, action: str) -> StepResult:
        self._spending.step()
        node.moved_on = True  # whatever comes of it
        self._sessions.left(node)
        return await self._parts.sessions.step(
            node.session_id, node.index, action, timeout_s=self._limits.step_timeout_s
        )

    def _id(self, depth: int, branch: str) -> str:
        return f"{depth}{branch}~{again}" if (again := self.group.again) else f"{depth}{branch}"


def _ended(result: StepResult | None) -> FinishReason | None:
    if result is None:
        return None
    if result.terminated:
        return FinishReason.TERMINATED
    return FinishReason.ENV_TURN_LIMIT if result.truncated else None
