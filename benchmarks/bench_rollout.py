"""The cost of episodes beyond the engine's: replies per second while episodes run, and by the engine alone.

Episodes of the maze are played through gateway and env server; every request
to the engine is recorded. The baseline then asks the same engine for the same
prompts and lengths in the same order per episode, with nothing around it: for
the embedded engine a loop in its own thread, for a vLLM server a plain load
generator. Rounds of both alternate, so that a busy machine is busy for both.

Then `mcts` searches `--trees` tasks at once, with each reply below a node that
was forked, and the bare engine gets the same requests as each tree made, in the
same order. Nodes are valued in this process, by the environment's score:
bench_rewards measures the time of the reward service. The share of prompt
tokens found in the prefix cache comes from the vLLM server's own metrics.
"""

import argparse
import asyncio
import contextlib
import gc
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import aiohttp
import uvloop
from gymfleet_client import GatewayClient, SessionStream
from gymfleet_contracts.reward import EvaluatorSpec
from gymfleet_contracts.rollout import EpisodeLimits, GroupRequest, Sampling, StrategySpec
from gymfleet_contracts.session import OpenSession
from gymfleet_kit.chat.tokens import ChatTokens
from gymfleet_rollout.environments import Environments
from gymfleet_rollout.formats import Formats
from gymfleet_rollout.inference.base import Engine, EngineConfig, GenerationRequest
from gymfleet_rollout.inference.embedded import EmbeddedEngine
from gymfleet_rollout.inference.engine import Core
from gymfleet_rollout.inference.server import ServerEngine
from gymfleet_rollout.model import vocab_size
from gymfleet_rollout.player import Player
from gymfleet_rollout.policy import Policy

from benchmarks.command import BenchmarkCommand, Size
from benchmarks.noted_engines import (
    Conversation,
    NotedEmbedded,
    NotedServer,
    Request,
    Scores,
    asked_by,
    hit_rate,
    prefix_cache,
)
from benchmarks.playing import episodes
from benchmarks.record import Row, record
from tests.fixtures import gateway_fleet
from tests.models import build_tiny_model
from tests.vllm_server import vllm_server

GOALS: Final = {"embedded": 0.8, "server": 0.9}
SEARCH_GOAL: Final = 0.8
MAX_MODEL_LEN: Final = 1024
MAX_NUM_SEQS: Final = {"embedded": 256, "server": 64}
SAMPLING: Final = Sampling()
MAX_RESPONSE_TOKENS: Final = 12
SIZES: Final = {
    "groups": Size(32, smoke=2),
    "group_size": Size(8, smoke=2),
    "turns": Size(8, smoke=2),
    "rounds": Size(3, smoke=1),
    "trees": Size(64, smoke=2),
    "simulations": Size(8, smoke=2),
}


@dataclass
class Stand:
    """One backend, its policy, and the player in front of it."""

    kind: str
    replica: Engine
    policy: Policy
    player: Player
    model: Path
    rates: list[float] = field(default_factory=list)
    bare_rates: list[float] = field(default_factory=list)

    async def search(self, num_trees: int, simulations: int, num_turns: int) -> list[Conversation]:
        """Run one round of searches; return each tree's requests to the engine, in order."""
        spec = StrategySpec(use="mcts", options={"simulations": simulations})
        groups = [
            GroupRequest(
                run_id="bench", group_id=str(place), task=OpenSession(env="maze", task_index=place), num_samples=1,
                limits=_limits(num_turns), strategy=spec, evaluator=EvaluatorSpec.model_validate({"goal": {}}),
            )
            for place in range(num_trees)
        ]  # fmt: skip
        began = time.perf_counter()
        conversations = await asyncio.gather(*(asked_by(episodes(self.player, group, (0,))) for group in groups))
        self.rates.append(sum(map(len, conversations)) / (time.perf_counter() - began))
        return conversations

    async def play(self, num_groups: int, group_size: int, num_turns: int) -> list[Conversation]:
        """Run one round of episodes; return the requests made to the engine."""
        limits = _limits(num_turns)
        groups = [
            GroupRequest(
                run_id="bench", group_id=str(place), task=OpenSession(env="maze", task_index=place),
                num_samples=group_size, limits=limits,
            )
            for place in range(num_groups)
        ]  # fmt: skip
        began = time.perf_counter()
        played = await asyncio.gather(*(episodes(self.player, group, range(group_size)) for group in groups))
        trajectories = [trajectory for group in played for trajectory in group]
        seconds = time.perf_counter() - began
        conversations = []
        for trajectory in trajectories:
            assert trajectory.status.trainable, trajectory.error
            context: list[int] = []
            conversation = []
            for turn in trajectory.turns:
                context += turn.prompt_token_ids
                conversation.append(Request(list(context), len(turn.response_token_ids)))
                context += turn.response_token_ids
            conversations.append(conversation)
        self.rates.append(sum(map(len, conversations)) / seconds)
        return conversations

    async def bare(self, conversations: Sequence[Conversation]) -> None:
        """Make the same requests to the bare engine."""
        if isinstance(self.replica, EmbeddedEngine):
            seconds = await self.replica.between_steps(lambda core: _loop(core, conversations))
        else:
            seconds = await _generate_load(self.replica.name, conversations)
        self.bare_rates.append(sum(map(len, conversations)) / seconds)


def _limits(num_turns: int) -> EpisodeLimits:
    return EpisodeLimits(max_turns=num_turns, max_response_tokens=MAX_RESPONSE_TOKENS, max_context_tokens=MAX_MODEL_LEN)


def _loop(core: Core, conversations: Sequence[Conversation]) -> float:
    """Step the engine until every conversation is finished; return the seconds."""
    began = time.perf_counter()
    waiting = [iter(conversation) for conversation in conversations]
    running: dict[str, Any] = {}

    def advance(conversation: Any) -> None:
        request = next(conversation, None)
        if request is not None:
            asked = GenerationRequest(request.prompt, request.num_tokens, SAMPLING, (), "bare")
            running[core.add(asked)] = conversation

    for conversation in waiting:
        advance(conversation)
    while running:
        for output in core.step():
            if output.ended is not None:
                advance(running.pop(output.request_id))
    return time.perf_counter() - began


async def _generate_load(url: str, conversations: Sequence[Conversation]) -> float:
    """Run all conversations at once, up to the server's number of sequences, each in order; return the seconds."""
    slots = asyncio.Semaphore(MAX_NUM_SEQS["server"])
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=2.0)
    async with aiohttp.ClientSession(url, connector=connector) as client:

        async def converse(conversation: Conversation) -> None:
            for request in conversation:
                params = {"max_tokens": request.num_tokens, "ignore_eos": True, "logprobs": 0, "detokenize": False}
                body = {"token_ids": request.prompt, "sampling_params": params, "cache_salt": "bare"}
                async with slots, client.post("/inference/v1/generate", json=body) as reply:
                    reply.raise_for_status()
                    await reply.read()

        began = time.perf_counter()
        await asyncio.gather(*map(converse, conversations))
        return time.perf_counter() - began


@contextlib.asynccontextmanager
async def stand(kind: str, directory: Path, gateway_url: str, threads: int) -> AsyncIterator[Stand]:
    """Serve a policy of about a million parameters with one backend."""
    model = build_tiny_model(directory / kind, tie_embeddings=False, seed=0, hidden_size=128, num_layers=4)
    async with contextlib.AsyncExitStack() as stack:
        replica: Engine
        if kind == "embedded":
            replica = NotedEmbedded(
                EngineConfig(model=model, max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_SEQS[kind], threads=threads)
            )
        else:
            url = stack.enter_context(
                vllm_server(
                    model, directory / "server.log", max_model_len=MAX_MODEL_LEN, max_num_seqs=MAX_NUM_SEQS[kind]
                )
            )
            replica = NotedServer(url, weights_path=model, concurrency=MAX_NUM_SEQS[kind])
        policy = Policy(
            [replica], model="bench", base_path=model, backend=kind, dtype="float32", vocab_size=vocab_size(model)
        )
        await policy.start()
        gc.freeze()  # as the service does
        stack.push_async_callback(policy.close)
        sessions = await stack.enter_async_context(SessionStream(gateway_url))
        specs = Environments(await stack.enter_async_context(GatewayClient(gateway_url)))
        player = Player(
            policy, ChatTokens.load(model), sessions, specs, Formats(), max_episodes=512, evaluator=Scores()
        )
        yield Stand(kind, replica, policy, player, model)


async def measure(kind: str, directory: Path, gateway_url: str, arguments: argparse.Namespace) -> list[Row]:
    """Alternate rounds; the first of each kind warms up and is not counted."""
    async with stand(kind, directory, gateway_url, arguments.threads) as bench:
        for _ in range(arguments.rounds + 1):
            conversations = await bench.play(arguments.groups, arguments.group_size, arguments.turns)
            await bench.replica.load(bench.model)  # both begin with an empty prefix cache
            await bench.bare(conversations)
            await bench.replica.load(bench.model)
        made = _rows(f"{kind}: replies while episodes run", f"{kind}: share", bench, GOALS[kind])
        bench.rates.clear()
        bench.bare_rates.clear()
        cached = []
        for _ in range(arguments.rounds + 1):
            before = await prefix_cache(bench.replica)
            conversations = await bench.search(arguments.trees, arguments.simulations, arguments.turns)
            cached.append((before, await prefix_cache(bench.replica)))
            await bench.replica.load(bench.model)
            await bench.bare(conversations)
            await bench.replica.load(bench.model)
    title = f"{kind}, {arguments.trees} trees"
    made += _rows(f"{title}: replies while they are searched", f"{title}: share", bench, SEARCH_GOAL)
    if isinstance(bench.replica, ServerEngine):
        found = statistics.median(hit_rate(*both) for both in cached[1:])
        made.append(Row.of(f"{title}: prompt tokens that lay in the prefix cache", found, ""))
    return made


def _rows(replies: str, share: str, bench: Stand, goal: float) -> list[Row]:
    value, baseline = statistics.median(bench.rates[1:]), statistics.median(bench.bare_rates[1:])
    return [
        Row.of(f"{replies}, bare engine as baseline", value, "1/s", baseline=baseline),
        Row.of(f"{share} of the bare engine", value / baseline, "", goal=goal),
    ]


async def run(arguments: argparse.Namespace) -> list[Row]:
    """Measure all chosen backends, with one gateway and one env server."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        env = gateway_fleet.env_server(directory, "maze")
        gateway = gateway_fleet.gateway(directory, [env.url])
        with gateway_fleet.running(env, gateway):
            for kind in arguments.backends:
                rows += await measure(kind, directory, gateway.url, arguments)
    return rows


def main() -> None:
    """Measure and record."""
    parser = BenchmarkCommand(__doc__, SIZES)
    parser.add_argument("--backends", nargs="+", choices=sorted(GOALS), default=sorted(GOALS))
    parser.add_argument("--threads", type=int, default=1, help="of the embedded engine's tensor operations")
    options = parser.options()
    record("rollout", uvloop.run(run(options)), options)


if __name__ == "__main__":
    main()
