"""A vLLM server given by URL.

It is started with:

    VLLM_SERVER_DEV_MODE=1 python -m vllm.entrypoints.openai.api_server --model DIR
        --enable-scale-out --logprobs-mode processed_logprobs --generation-config vllm --enable-prompt-tokens-details
        --worker-extension-cls gymfleet_rollout.inference.worker_extension.PolicyLoader

and, if it is to sleep, with `--enable-sleep-mode`; if versions are adapters, also with
VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and `--enable-lora --max-lora-rank RANK --max-loras 2`.

The routes that replace weights have no authentication: bind the server to a
private address. Every engine is called directly, never through a load balancer.
Its weights carry a label that comes back with every reply, so that a server
that was restarted without our knowledge is noticed at its first token.
"""

import asyncio
import contextlib
import math
import re
import secrets
from http import HTTPStatus
from pathlib import Path
from typing import Final

import aiohttp
import msgspec
import structlog
from gymfleet_contracts.rollout import Sampling
from gymfleet_contracts.weights import WeightsOnGpu
from gymfleet_kit.retries import Retries

from gymfleet_rollout.inference.base import (
    REPLY_ENDS,
    Continuation,
    Engine,
    EngineDown,
    GenerationRequest,
    InferenceError,
    OnTokens,
    WeightsRejected,
)
from gymfleet_rollout.inference.manifest import require_loaded

log = structlog.get_logger()

# vLLM's server closes an idle connection after 5 s; a client that keeps one for
# that long sends a request into a connection that is being closed.
_KEEPALIVE_EXPIRY_S: Final = 2.0
_CONTROL_TIMEOUT_S: Final = 30.0
_CONNECT_TIMEOUT_S: Final = 10.0
_HEALTH_TIMEOUT_S: Final = 5.0
_LOAD_TIMEOUT_S: Final = 600.0
_SLEEP_TIMEOUT_S: Final = 120.0
_SLEEP_LEVEL: Final = "1"
"""Weights are kept in the server's main memory: docs/adr/0067 explains why."""
_POLL_S: Final = 0.25
_DRAIN_POLL_S: Final = 0.05
_DRAIN_TIMEOUT_S: Final = 10.0
_COUNT_TOKENS_S: Final = 2.0
_GENERATED_TOKENS: Final = re.compile(rb"^vllm:generation_tokens_total(?:\{[^}]*\})? ([0-9.e+]+)$", re.MULTILINE)
_DOWN_STATUS: Final = frozenset({502, 503, 504})
_HEADERS: Final = {"content-type": "application/json"}


class _Logprob(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Logprob]


class _Span(msgspec.Struct):
    version: str


class _Choice(msgspec.Struct):
    finish_reason: str
    token_ids: list[int]
    logprobs: _Logprobs
    weight_versions: list[_Span] | None = None


class _PromptTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens_details: _PromptTokens | None = None


class _Generated(msgspec.Struct):
    choices: list[_Choice]
    usage: _Usage | None = None

    @property
    def num_cached_tokens(self) -> int:
        """Return the prompt's tokens that were cached, which only `--enable-prompt-tokens-details` tells."""
        told = None if self.usage is None else self.usage.prompt_tokens_details
        return (told and told.cached_tokens) or 0


class _Reset(msgspec.Struct):
    success: bool


class _Asleep(msgspec.Struct):
    is_sleeping: bool


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Described(msgspec.Struct):
    max_lora_rank: int = 0


class _Workers(msgspec.Struct):
    results: list[_Described]


class _Loaded(msgspec.Struct):
    results: list[dict[str, int | str]]


class _Refused(InferenceError):
    """The server answered with an error status."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


_decode_generated: Final = msgspec.json.Decoder(_Generated).decode
_decode_models: Final = msgspec.json.Decoder(_Models).decode
_decode_workers: Final = msgspec.json.Decoder(_Workers).decode
_encode: Final = msgspec.json.Encoder().encode


class ServerEngine(Engine):
    """One vLLM server.

    Args:
        weights_path: the weights that the server must load when this service starts.
        concurrency: how many requests are sent at once; the others wait here,
            because a connection pool is not a queue.
        start_timeout_s: how long a server may take to come up.
        lora_rank: the rank of the adapters that the server must take; with 0 it gets whole weights.
        sleep_mode: the server, which was started with `--enable-sleep-mode`, will be put to sleep.
    """

    def __init__(
        self,
        url: str,
        *,
        weights_path: Path,
        concurrency: int,
        start_timeout_s: float = 600.0,
        request_timeout_s: float = 600.0,
        lora_rank: int = 0,
        sleep_mode: bool = False,
    ) -> None:
        self.name = url.rstrip("/")
        self.max_model_len = 0
        self._start_timeout_s = start_timeout_s
        self._slots = asyncio.Semaphore(concurrency)
        self._weights_path = weights_path
        self._lora_rank = lora_rank
        self._sleep_mode = sleep_mode
        self._adapter: str | None = None
        """The server's name for the adapter of new requests."""
        self._before: str | None = None
        self._label = ""
        self._tasks: set[asyncio.Task[Continuation]] = set()
        self._draining = False
        self._epoch = 0
        self._request_timeout_s = request_timeout_s
        self._http: aiohttp.ClientSession | None = None
        self._watchers: list[OnTokens] = []
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Wait for the server, then check that it was started with the options that this service needs."""
        try:
            await Retries(
                "engine.awaited", on=InferenceError, longest_pause_s=_POLL_S, level="info", bound={"engine": self.name}
            ).call(self.check, timeout_s=self._start_timeout_s)
        except InferenceError as error:
            raise InferenceError(f"no vLLM server at {self.name} within {self._start_timeout_s:g} s: {error}") from None
        try:
            models = _decode_models(await self._request("GET", "/v1/models"))
        except msgspec.MsgspecError as error:
            raise InferenceError(f"{self.name} is not a vLLM server: {error}") from error
        self.max_model_len = models.data[0].max_model_len or 0
        try:
            described = await self._rpc("describe_policy", {})
        except InferenceError as error:
            raise InferenceError(
                f"{self.name} cannot be given weights; start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls "
                f"gymfleet_rollout.inference.worker_extension.PolicyLoader ({error})"
            ) from error
        if self._lora_rank:
            await self._require_adapters(described)
        if self._sleep_mode:
            await self.wake()  # an earlier process of this service may have ended while it slept
        await self.load(self._weights_path)  # an earlier process of this service may have left other weights
        await self._require_processed_logprobs()

    async def generate(self, request: GenerationRequest, on_tokens: OnTokens | None = None) -> Continuation:
        """See `Engine.generate`."""
        sampling = request.sampling
        body = {
            "model": self._adapter,
            "token_ids": list(request.prompt_token_ids),
            "cache_salt": request.cache_salt,
            "sampling_params": {
                "max_tokens": request.max_tokens,
                "temperature": sampling.temperature,
                "top_p": sampling.top_p,
                "top_k": max(sampling.top_k, 0),
                "seed": sampling.seed,
                "stop_token_ids": request.stop_token_ids,
                "ignore_eos": True,
                "logprobs": 0,
                "detokenize": False,
            },
        }
        epoch = self._epoch
        self.num_in_flight += 1
        if on_tokens is not None:
            self._watch(on_tokens)
        try:
            async with self._slots:
                if epoch != self._epoch:  # interrupted while it waited for its turn
                    return Continuation([], [], None)
                task = asyncio.create_task(self._sample(_encode(body), epoch))
                self._tasks.add(task)
                try:
                    return await task
                except asyncio.CancelledError:
                    if task.cancelled() and self._draining:
                        return Continuation([], [], None)
                    task.cancel()
                    raise
                finally:
                    self._tasks.discard(task)
        finally:
            self.num_in_flight -= 1
            if on_tokens is not None:
                self._watchers.remove(on_tokens)

    async def interrupt(self) -> None:
        """Abort until no request is left, because one can still be on its way when the first abort arrives."""
        self._draining = True
        self._epoch += 1
        try:
            async with asyncio.timeout(_DRAIN_TIMEOUT_S):
                await self._request("POST", "/pause", params={"mode": "abort"})
                while self._tasks:
                    await self._request("POST", "/abort_requests", content=b"{}")
                    await asyncio.wait(self._tasks, timeout=_DRAIN_POLL_S)
        except TimeoutError:
            for task in self._tasks:  # their partial replies are lost and are sampled again
                task.cancel()
            log.warning("engine.drain_timeout", engine=self.name, num_requests=len(self._tasks))
        finally:
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=_DRAIN_TIMEOUT_S)
            await self._request("POST", "/resume")
            self._draining = False

    async def load(self, weights_path: Path) -> None:
        """See `Engine.load`."""
        await self._load(weights_path, None)

    async def load_from_gpu(self, weights_path: Path, on_gpu: WeightsOnGpu) -> None:
        """See `Engine.load_from_gpu`."""
        await self._load(weights_path, on_gpu)

    async def _load(self, weights_path: Path, on_gpu: WeightsOnGpu | None) -> None:
        label = secrets.token_hex(8)
        self._epoch += 1  # requests aborted from here on are not the server's fault
        await self._request("POST", "/pause", params={"mode": "abort"})
        try:
            if self._lora_rank:
                await self._load_adapter(weights_path, label)
            else:
                where = "" if on_gpu is None else on_gpu.model_dump_json()
                answer = await self._rpc(
                    "load_policy", {"weights_path": str(weights_path), "on_gpu": where}, timeout_s=_LOAD_TIMEOUT_S
                )
                require_loaded(msgspec.json.decode(answer, type=_Loaded).results)
            reply = await self._request("POST", "/reset_prefix_cache")
            if not msgspec.json.decode(reply, type=_Reset).success:
                raise WeightsRejected(f"{self.name} did not reset its prefix cache")
            await self._request("POST", "/update_weight_version", content=_encode({"new_version": label}))
            self._label = label
        except EngineDown:
            raise
        except InferenceError as error:
            raise WeightsRejected(str(error)) from error
        finally:
            await self._request("POST", "/resume")

    async def _load_adapter(self, path: Path, label: str) -> None:
        """Let requests name the adapter in a directory, or none for the model's own; keep the previous one."""
        name = None
        if path != self._weights_path:
            name = f"{path.name}.{label}"
            body = _encode({"lora_name": name, "lora_path": str(path)})
            await self._request("POST", "/v1/load_lora_adapter", content=body, timeout_s=_LOAD_TIMEOUT_S)
        if self._before is not None:
            with contextlib.suppress(_Refused):  # a server that was restarted does not know it
                await self._request("POST", "/v1/unload_lora_adapter", content=_encode({"lora_name": self._before}))
        self._before, self._adapter = self._adapter, name

    async def sleep(self) -> None:
        """See `Engine.sleep`."""
        await self._request("POST", "/sleep", params={"level": _SLEEP_LEVEL}, timeout_s=_SLEEP_TIMEOUT_S)

    async def wake(self) -> None:
        """See `Engine.wake`."""
        reply = await self._request("GET", "/is_sleeping", timeout_s=_CONTROL_TIMEOUT_S)
        if msgspec.json.decode(reply, type=_Asleep).is_sleeping:
            await self._request("POST", "/wake_up", timeout_s=_SLEEP_TIMEOUT_S)

    async def check(self) -> None:
        """Check vLLM's own health route, which shows whether its engine process is alive."""
        try:
            await self._request("GET", "/health", timeout_s=_HEALTH_TIMEOUT_S)
        except InferenceError as error:
            raise EngineDown(f"the vLLM server at {self.name} is not healthy: {error}") from error

    async def close(self) -> None:
        """Close the connections; the server keeps running."""
        for task in self._tasks:
            task.cancel()
        if self._watching is not None:
            self._watching.cancel()
        if self._http is not None:
            await self._http.close()

    def _watch(self, on_tokens: OnTokens) -> None:
        self._watchers.append(on_tokens)
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._count_tokens())

    async def _count_tokens(self) -> None:
        """Report tokens while replies are being generated, because a long reply reports nothing before its end."""
        before = math.inf
        while self._watchers:
            await asyncio.sleep(_COUNT_TOKENS_S)
            try:
                reply = await self._request("GET", "/metrics", timeout_s=_HEALTH_TIMEOUT_S)
            except InferenceError:
                continue
            total = sum(float(value) for value in _GENERATED_TOKENS.findall(reply))
            if total > before and self._watchers:
                self._watchers[0](int(total - before))
            before = total

    async def _sample(self, body: bytes, epoch: int) -> Continuation:
        try:
            reply = await self._request("POST", "/inference/v1/generate", content=body)
        except _Refused as error:
            if error.status == HTTPStatus.NOT_FOUND and self._adapter is not None:
                raise EngineDown(f"{self.name} does not know the adapter that it was given: it was restarted") from None
            raise
        try:
            generated = _decode_generated(reply)
            choice = generated.choices[0]
        except (msgspec.MsgspecError, IndexError) as error:
            raise InferenceError(f"{self.name} gave an unreadable reply: {error}") from error
        if any(span.version != self._label for span in choice.weight_versions or ()):
            raise EngineDown(f"{self.name} answers with weights that it was not given: it was restarted")
        logprobs = [entry.logprob for entry in choice.logprobs.content]
        if len(choice.token_ids) != len(logprobs):
            raise InferenceError(f"{self.name} gave {len(choice.token_ids)} tokens, {len(logprobs)} log-probabilities")
        if choice.finish_reason == "abort" and (self._draining or epoch != self._epoch):  # our own abort, to be resumed
            return Continuation(choice.token_ids, logprobs, None, generated.num_cached_tokens)
        if choice.finish_reason not in REPLY_ENDS:
            raise InferenceError(f"{self.name} ended a request with {choice.finish_reason!r}")
        reason = REPLY_ENDS[choice.finish_reason]
        return Continuation(choice.token_ids, logprobs, reason, generated.num_cached_tokens)

    async def _rpc(self, method: str, kwargs: dict[str, str], *, timeout_s: float = _CONTROL_TIMEOUT_S) -> bytes:
        body = _encode({"method": method, "kwargs": kwargs})
        return await self._request("POST", "/collective_rpc", content=body, timeout_s=timeout_s)

    async def _request(
        self,
        method: str,
        path: str,
        *,
        content: bytes | None = None,
        params: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> bytes:
        """Return the body of one HTTP call. Raises EngineDown if there is no answer, InferenceError for a refusal."""
        timeout = aiohttp.ClientTimeout(total=timeout_s or self._request_timeout_s, sock_connect=_CONNECT_TIMEOUT_S)
        try:
            async with self._session().request(
                method, self.name + path, data=content, params=params, headers=_HEADERS, timeout=timeout
            ) as reply:
                body = await reply.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise EngineDown(f"{method} {self.name}{path}: {type(error).__name__} {error}") from error
        if reply.ok:
            return body
        message = f"{method} {self.name}{path}: {reply.status} {body[:300].decode(errors='replace')}"
        raise EngineDown(message) if reply.status in _DOWN_STATUS else _Refused(message, reply.status)

    def _session(self) -> aiohttp.ClientSession:
        """Create the session on the loop that uses it. It is not httpx, which costs ten times the CPU per request."""
        if self._http is None:
            # No limit here, because `_slots` is the queue, and calls that control the engine must not wait in it.
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEPALIVE_EXPIRY_S)
            self._http = aiohttp.ClientSession(connector=connector, trust_env=False)
        return self._http

    async def _require_adapters(self, described: bytes) -> None:
        """Require a server that was started for adapters of this rank, and that takes them while it runs."""
        try:
            rank = min((worker.max_lora_rank for worker in _decode_workers(described).results), default=0)
        except msgspec.MsgspecError as error:
            raise InferenceError(f"{self.name} has another version of PolicyLoader: {error}") from error
        if rank < self._lora_rank:
            raise InferenceError(
                f"{self.name} takes adapters of rank {rank} at most, and {self._lora_rank} is wanted; start it with "
                "--enable-lora --max-lora-rank"
            )
        try:
            await self._request("POST", "/v1/load_lora_adapter", content=b"{}")
        except _Refused as error:  # as it must, of a request that names nothing
            if error.status == HTTPStatus.NOT_FOUND:
                raise InferenceError(
                    f"{self.name} takes no adapters while it runs; start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"
                ) from error

    async def _require_processed_logprobs(self) -> None:
        """Require processed log-probabilities: with top_k = 1, that of the only token left is 0; the raw one is not."""
        answer = await self.generate(GenerationRequest((1, 2, 3), 1, Sampling(top_k=1), (), cache_salt="start"))
        if not math.isclose(answer.logprobs[0], 0.0, abs_tol=1e-6):
            raise InferenceError(f"{self.name} reports raw log-probabilities; add --logprobs-mode processed_logprobs")
