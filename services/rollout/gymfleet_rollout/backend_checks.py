"""Checks of what a backend promises, with a small model: `examine` returns the promises that it breaks.

Transformers is the judge: an engine's log-probabilities are compared with the model's own.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from gymfleet_contracts.rollout import Sampling
from gymfleet_kit.plugins import PluginError

from gymfleet_rollout.backend import (
    Continuation,
    Engine,
    EngineConfig,
    GenerationRequest,
    InferenceBackend,
    InferenceError,
    backend_of,
)
from gymfleet_rollout.engine_pool import GREEDY
from gymfleet_rollout.inference.base import require_sound
from gymfleet_rollout.model import vocab_size

PATIENCE_S: Final = 300.0
"""Time for all checks; vLLM takes half a minute to start."""
PROMPT_S: Final = 10.0
"""Time within which a cancelled or interrupted request must have left the engine."""
TOLERANCE: Final = 1e-3
"""Mean |difference| in log-probability, in nat, that a trainer accepts at most."""
_CONTEXT: Final = 512
_LONG: Final = 400
"""Tokens of a reply that is not over before it is interrupted."""
_MANY: Final = 12
_PROMPT: Final = tuple(7 * place % 90 for place in range(70))
"""Longer than two blocks of vLLM's prefix cache; the tokens that pad and end texts are ordinary tokens here."""
_SALT: Final = "check"
_VOCABULARY: Final = 128
_A_MOMENT_S: Final = 0.1
_PAUSES_S: Final = (0.05, 0.2, 0.8)
"""Pauses before an interruption, tried until one catches a reply in the middle."""


def examine(
    reference: str, options: Mapping[str, Any] | None = None, models: tuple[Path, Path] | None = None
) -> list[str]:
    """Return a line for each promise that a backend breaks; none if it is sound.

    Args:
        reference: a name, `package.module:Class`, or the path of a file.
        options: its options, if it needs any.
        models: directories of two models of one shape, in float32, if the backend cannot load those that are made for
            it here: a backend that asks a server needs that server's model. The first is the one that it has.
    """
    try:
        backend = backend_of(reference, options or {}, table="options")
    except PluginError as error:
        return [str(error)]
    with tempfile.TemporaryDirectory() as directory:
        return asyncio.run(_examined(backend, models or _made(Path(directory))))


def _made(directory: Path) -> tuple[Path, Path]:
    """Make two models, with random weights large enough that their outputs differ."""
    import torch  # noqa: PLC0415 - heavy
    from transformers import Qwen3Config, Qwen3ForCausalLM  # noqa: PLC0415 - heavy

    for seed in range(2):
        torch.manual_seed(seed)
        config = Qwen3Config(
            vocab_size=_VOCABULARY, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=1, head_dim=32, max_position_embeddings=_CONTEXT, tie_word_embeddings=False,
            initializer_range=0.08, eos_token_id=2, pad_token_id=0, bos_token_id=None, dtype="float32",
        )  # fmt: skip
        Qwen3ForCausalLM(config).to(torch.float32).save_pretrained(directory / str(seed))
    return directory / "0", directory / "1"


async def _examined(backend: InferenceBackend[Any], models: tuple[Path, Path]) -> list[str]:
    config = EngineConfig(model=models[0], max_model_len=_CONTEXT, max_num_seqs=64, kv_cache_gib=0.25, seed=1)
    try:
        async with asyncio.timeout(PATIENCE_S):
            if not (replicas := await backend.replicas()):
                return ["it names no engine"]
            engine = backend.engine(replicas[0], config)
            engine.name = replicas[0]
            try:
                await engine.start()
                return await _Trial(engine, models).told()
            finally:
                await engine.close()
    except TimeoutError:
        return [f"it was not over after {PATIENCE_S:g} s"]
    except Exception as error:  # noqa: BLE001 - a backend may raise anything
        return [_raised("it cannot be started or closed", error)]


class _Trial:
    """One engine that has started."""

    def __init__(self, engine: Engine, models: tuple[Path, Path]) -> None:
        self._engine = engine
        self._models = models
        self._vocab_size = vocab_size(models[0])
        self._live = models[0]

    async def told(self) -> list[str]:
        """Try one promise after the other."""
        promises: tuple[Callable[[], Awaitable[list[str]]], ...] = (
            self._answers, self._repeats, self._stops, self._keeps_apart, self._counts_and_frees, self._interrupts,
            self._takes_weights,
        )  # fmt: skip
        told: list[str] = []
        for promise in promises:
            try:
                told += await promise()
            except Exception as error:  # noqa: BLE001 - a backend may raise anything
                told.append(_raised("it does not generate", error))
            if told and promise == self._answers:
                break  # the rest would say the same again
        return told

    async def _ask(
        self, sampling: Sampling = GREEDY, *, max_tokens: int = 16, prompt: Sequence[int] = _PROMPT, stop: int = -1
    ) -> Continuation:
        """Return a sound answer. Raises InferenceError for any other."""
        request = _request(prompt, max_tokens, sampling, (stop,) if stop >= 0 else ())
        answer = await self._engine.generate(request)
        require_sound(self._engine.name, request, answer, self._vocab_size)
        if answer.finish_reason is None:
            raise InferenceError("a reply has no finish reason, and nobody interrupted it")
        return answer

    async def _answers(self) -> list[str]:
        """Check the tokens, log-probabilities and ends of replies."""
        if self._engine.max_model_len < 1:
            return [f"its max_model_len is {self._engine.max_model_len} when it has started"]
        await self._engine.check()
        told = []
        for temperature in (1.0, 0.6):
            answer = await self._ask(Sampling(temperature=temperature, seed=3), max_tokens=64)
            if (len(answer.token_ids), answer.finish_reason) != (64, "length"):
                told.append(
                    f"it ends a reply after {len(answer.token_ids)} of 64 tokens with {answer.finish_reason!r}, and no "
                    "stop token was given"
                )
            elif (gap := self._gap(answer, _PROMPT, temperature)) > TOLERANCE:
                told.append(
                    f"at temperature {temperature:g} its log-probabilities differ from the model's own by {gap:.4f} "
                    "nat a token"
                )
        greedy, best = await self._ask(), await self._ask(Sampling(top_k=1, seed=4))
        if greedy.token_ids != self._best(len(greedy.token_ids)):
            told.append("at temperature 0 it does not choose the likeliest token")
        if best.token_ids != greedy.token_ids or max(map(abs, best.logprobs)) > TOLERANCE:
            told.append("with top_k = 1 it chooses other tokens than the likeliest, or says that they were not certain")
        return told

    async def _repeats(self) -> list[str]:
        one, again, other = [(await self._ask(Sampling(seed=seed))).token_ids for seed in (1, 1, 2)]
        free = [(await self._ask(Sampling())).token_ids for _ in range(2)]
        told = []
        if one != again:
            told.append("with the same seed it draws other tokens")
        if one == other:
            told.append("with another seed it draws the same tokens")
        if free[0] == free[1]:
            told.append("without a seed it draws the same tokens twice")
        return told

    async def _stops(self) -> list[str]:
        plain = await self._ask(max_tokens=24)
        stop = plain.token_ids[6]
        expected = plain.token_ids[: plain.token_ids.index(stop) + 1]
        answer = await self._ask(max_tokens=24, stop=stop)
        if answer.token_ids != expected or answer.finish_reason != "stop":
            ended = f"after {len(answer.token_ids)} with {answer.finish_reason!r}"
            return [
                f"a reply whose stop token is its number {len(expected)} should end with it and 'stop', not {ended}"
            ]
        return []

    async def _keeps_apart(self) -> list[str]:
        prompts = [(*_PROMPT[: 10 + place], place) for place in range(_MANY)]
        answers = await asyncio.gather(*(self._ask(Sampling(), max_tokens=8, prompt=prompt) for prompt in prompts))
        worst = max(self._gap(answer, prompt) for answer, prompt in zip(answers, prompts, strict=True))
        if worst > TOLERANCE:
            return [f"of {_MANY} requests at once one has log-probabilities that differ by {worst:.4f} nat a token"]
        return []

    async def _counts_and_frees(self) -> list[str]:
        task = asyncio.create_task(self._engine.generate(_request(_PROMPT, _LONG, Sampling(), ())))
        await asyncio.sleep(0)
        counted = self._engine.num_in_flight
        await asyncio.sleep(0.05)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        told = [] if counted == 1 else [f"its num_in_flight is {counted} as soon as one request is made"]
        try:
            async with asyncio.timeout(PROMPT_S):
                await self._ask()
        except TimeoutError:
            told.append(f"after a request was cancelled it answers no other within {PROMPT_S:g} s")
        return told + self._left("a request was cancelled")

    async def _interrupts(self) -> list[str]:
        for pause_s in _PAUSES_S:
            answers, told = await self._interrupted(pause_s)
            if told or any(0 < len(answer.token_ids) < _LONG for answer in answers):
                return told  # it came neither too early nor too late
        return []

    async def _interrupted(self, pause_s: float) -> tuple[list[Continuation], list[str]]:
        request = _request(_PROMPT, _LONG, Sampling(seed=5), ())
        tasks = [asyncio.create_task(self._engine.generate(request)) for _ in range(3)]
        await asyncio.sleep(pause_s)
        try:
            async with asyncio.timeout(PROMPT_S):
                await self._engine.interrupt()
        except TimeoutError:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            return [], [f"an interruption was not over after {PROMPT_S:g} s"]
        await asyncio.wait(tasks, timeout=_A_MOMENT_S)
        told = []
        if open_ones := [task for task in tasks if not task.done()]:
            told.append(f"{len(open_ones)} of {len(tasks)} requests are not over when an interruption is")
            await asyncio.gather(*tasks, return_exceptions=True)
        answers = [task.result() for task in tasks]
        for answer in answers:
            require_sound(self._engine.name, request, answer, self._vocab_size)
            if answer.finish_reason is not None and len(answer.token_ids) < _LONG:
                told.append(f"a reply that was interrupted has the finish reason {answer.finish_reason!r}, not None")
            if answer.token_ids and self._gap(answer, _PROMPT) > TOLERANCE:
                told.append("the log-probabilities of a reply that was interrupted are not the model's own")
        return answers, list(dict.fromkeys(told)) + self._left("it was interrupted")

    async def _takes_weights(self) -> list[str]:
        told = []
        for path in (self._models[1], self._models[0]):
            await self._engine.load(path)
            self._live = path
            answer = await self._ask(Sampling(seed=6))
            if (gap := self._gap(answer, _PROMPT)) > TOLERANCE:
                told.append(f"with new weights its log-probabilities differ from the model's by {gap:.4f} nat a token")
        return told

    def _left(self, when: str) -> list[str]:
        number = self._engine.num_in_flight
        return [f"its num_in_flight is {number} after {when}"] if number else []

    def _gap(self, answer: Continuation, prompt: Sequence[int], temperature: float = 1.0) -> float:
        """Return the mean |difference| between the engine's log-probabilities and those of the live weights."""
        import torch  # noqa: PLC0415 - heavy

        table = torch.log_softmax(_logits(self._live, prompt, answer.token_ids) / temperature, -1)
        truth = table[range(len(answer.token_ids)), answer.token_ids].tolist()
        return float(sum(abs(one - other) for one, other in zip(truth, answer.logprobs, strict=True)) / len(truth))

    def _best(self, number: int) -> list[int]:
        """Return the tokens of the live weights' own greedy reply."""
        tokens: list[int] = []
        while len(tokens) < number:
            tokens.append(int(_logits(self._live, _PROMPT, [*tokens, 0])[-1].argmax()))
        return tokens


_JUDGES: Final[dict[Path, Any]] = {}


def _logits(path: Path, prompt: Sequence[int], tokens: Sequence[int]) -> Any:
    """Return the logits of the model in a directory before each of the tokens, (T, V)."""
    import torch  # noqa: PLC0415 - heavy
    from transformers import AutoModelForCausalLM  # noqa: PLC0415 - heavy

    if path not in _JUDGES:
        _JUDGES[path] = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    with torch.no_grad():
        return _JUDGES[path](torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].double()


def _request(prompt: Sequence[int], max_tokens: int, sampling: Sampling, stop: tuple[int, ...]) -> GenerationRequest:
    return GenerationRequest(prompt, max_tokens, sampling, stop, _SALT)


def _raised(what: str, error: Exception) -> str:
    reason = " ".join(str(error).split()) or "no reason given"
    return f"{what}: {type(error).__name__}: {reason}"
