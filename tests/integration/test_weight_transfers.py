"""Weights on their way from a trainer to a real engine: they arrive as they were, or the live version goes on."""

import asyncio
import secrets
import shutil
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from gymfleet_contracts.rollout import EngineProbe, Sampling, StagedVersion, StageVersion
from gymfleet_contracts.weights import MANIFEST, WeightsManifest
from gymfleet_kit.shared_weights import SHARED_MEMORY
from gymfleet_rollout.errors import PolicyUpdateFailed
from gymfleet_rollout.inference.base import EngineConfig
from gymfleet_rollout.inference.embedded import EmbeddedEngine
from gymfleet_rollout.inference.worker_extension import PolicyLoader
from gymfleet_rollout.model import vocab_size
from gymfleet_rollout.policy import Policy
from gymfleet_trainer.learning.learner import LocalLearner
from gymfleet_trainer.publish.published_weights import PublishedWeights
from gymfleet_trainer.publish.transfers import transfer_of
from gymfleet_trainer.publish.transfers.base import Transfer
from gymfleet_trainer.publish.transfers.broadcast import Broadcast
from gymfleet_trainer.run.torch_thread import TorchThread

from tests.fixtures.paths import ROOT
from tests.fixtures.scored import make_recipe
from tests.fixtures.weight_receiver import PATIENCE_S
from tests.models import build_tiny_model

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # vLLM's and torch's own deprecations, while they are imported
    pytest.mark.timeout(300),
]
PROMPTS: Final = ((7, 8, 9), tuple(range(20, 60)))
TOLERANCE: Final = 1e-5
HERE: Final = "http://127.0.0.1:1"
THERE: Final = "http://127.0.0.1:2"


@dataclass
class Trainer:
    """A learner, and what it publishes by."""

    learner: LocalLearner
    transfer: Transfer

    async def written(self, version: int) -> Path:
        with TorchThread(1) as worker:
            return await PublishedWeights(self.transfer.root, self.learner.save_weights, worker).write(version)

    def difference(self, probe: EngineProbe) -> float:
        """The largest |difference| between what an engine sampled and what the learner says of it."""
        samples = [list(sample.token_ids) for sample in probe.samples]
        ours = self.learner.sampled_logprobs([list(prompt) for prompt in PROMPTS], samples)
        theirs = [sample.logprobs for sample in probe.samples]
        return max(abs(a - b) for one, other in zip(ours, theirs, strict=True) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=["disk", "shared_memory", "broadcast"])
def trainer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Trainer]:
    source = build_tiny_model(tmp_path / "source", tie_embeddings=True, seed=1 + len(request.param), hidden_size=256)
    recipe = make_recipe(publish={"transfer": request.param, "bucket_mib": 1})
    transfer = transfer_of(recipe, tmp_path / "weights", f"test-{secrets.token_hex(4)}", str(source))
    try:
        yield Trainer(LocalLearner(recipe, str(source), tmp_path / "references"), transfer)
    finally:
        transfer.close()


@pytest.fixture(scope="module")
def received_dir() -> Iterator[Path]:
    """A place in shared memory that no other test looks at."""
    with tempfile.TemporaryDirectory(dir=SHARED_MEMORY) as directory:
        yield Path(directory)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def policy(tmp_path_factory: pytest.TempPathFactory, received_dir: Path) -> AsyncIterator[Policy]:
    base = build_tiny_model(tmp_path_factory.mktemp("base"), tie_embeddings=True, seed=0, hidden_size=256)
    engine = EmbeddedEngine(EngineConfig(model=base, max_model_len=128, max_num_seqs=8, kv_cache_gib=0.1))
    policy = Policy(
        [engine], model="tiny", base_path=base, backend="embedded", dtype="float32", vocab_size=vocab_size(base),
        received_dir=received_dir,
    )  # fmt: skip
    await policy.start()
    try:
        yield policy
    finally:
        await policy.close()


def received(directory: Path) -> list[str]:
    return [path.name for path in directory.glob("gymfleet-weights-received-*/v*")]


def body(policy: Policy, path: Path, **changes: Any) -> StageVersion:
    fields = {"version": policy.live_version + 1, "weights_path": str(path), "probe_prompts": PROMPTS}
    return StageVersion.model_validate({**fields, "probe_max_tokens": 12, **changes})


async def staged(policy: Policy, trainer: Trainer, path: Path) -> StagedVersion:
    async with trainer.transfer.offer(body(policy, path), [HERE]) as offer:
        try:
            return await policy.stage(offer.bodies[HERE])
        finally:
            offer.answered(HERE)


async def committed(policy: Policy, trainer: Trainer) -> StagedVersion:
    answer = await staged(policy, trainer, await trainer.written(policy.live_version + 1))
    await policy.commit(answer.version)
    return answer


async def answer(policy: Policy) -> tuple[int, ...]:
    greedy = Sampling(temperature=0.0)
    return (await policy.generate(PROMPTS[1], max_tokens=12, sampling=greedy, stop_token_ids=())).token_ids


async def test_weights_arrive_as_the_trainer_has_them(policy: Policy, trainer: Trainer) -> None:
    path = await trainer.written(policy.live_version + 1)
    assert len(list(path.glob("*.safetensors"))) > 1

    found = await staged(policy, trainer, path)
    await policy.commit(found.version)

    assert trainer.difference(found.engines[0]) < TOLERANCE


async def test_a_flipped_byte_is_refused_and_the_live_version_answers(policy: Policy, trainer: Trainer) -> None:
    await committed(policy, trainer)
    before, live = await answer(policy), policy.live_version
    path = await trainer.written(live + 1)
    file = sorted(path.glob("*.safetensors"))[1]
    content = bytearray(file.read_bytes())
    content[-7] ^= 1
    file.write_bytes(content)

    with pytest.raises(PolicyUpdateFailed, match=f"{file.name}, has the checksum"):
        await staged(policy, trainer, path)

    assert policy.live_version == live
    assert await answer(policy) == before


async def test_an_engine_that_does_not_see_the_shared_memory_says_so(policy: Policy) -> None:
    del policy  # vLLM is imported with it
    path = f"{SHARED_MEMORY}/gymfleet-weights-elsewhere/v000001"

    assert PolicyLoader().load_policy(path) == {"refused": f"{path} is not in the shared memory that the engine sees"}


async def test_a_run_leaves_nothing_in_shared_memory_once_engines_have_other_weights(
    policy: Policy, trainer: Trainer, tmp_path: Path
) -> None:
    if trainer.transfer.root.parent != SHARED_MEMORY:
        return
    await committed(policy, trainer)
    trainer.transfer.close()
    assert trainer.transfer.root.is_dir(), "an engine that is restarted loads the live version from it"

    bare = build_tiny_model(tmp_path / "bare", tie_embeddings=True, seed=5, hidden_size=256)
    await policy.stage(second := body(policy, bare))
    await policy.commit(second.version)

    assert not trainer.transfer.root.exists()


@pytest.mark.parametrize("trainer", ["broadcast"], indirect=True)
async def test_what_was_received_is_there_when_the_trainer_is_not(
    policy: Policy, trainer: Trainer, received_dir: Path
) -> None:
    await committed(policy, trainer)
    before, live = await answer(policy), policy.live_version
    found = await staged(policy, trainer, await trainer.written(live + 1))
    shutil.rmtree(trainer.transfer.root)

    await policy.refuse(found.version)

    policy.require_usable()
    assert (policy.live_version, await answer(policy)) == (live, before)
    assert received(received_dir) == [f"v{live:06d}"], "the live version is kept, and no other"


@pytest.mark.parametrize("trainer", ["broadcast"], indirect=True)
async def test_a_service_that_is_killed_in_between_costs_one_attempt(policy: Policy, trainer: Trainer) -> None:
    await committed(policy, trainer)
    before, live = await answer(policy), policy.live_version
    path = await trainer.written(live + 1)
    sizes = [bucket.size_bytes for bucket in WeightsManifest.model_validate_json((path / MANIFEST).read_text()).buckets]
    assert len(sizes) > 1
    transfer = Broadcast(path.parent, timeout_s=PATIENCE_S)

    async with transfer.offer(body(policy, path), [HERE, THERE]) as offer:
        other = offer.bodies[THERE].broadcast
        assert other is not None
        command = [sys.executable, "-m", "tests.fixtures.weight_receiver"]
        command += [str(other.port), other.token, str(other.seat), *map(str, sizes)]
        process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
        staging = asyncio.create_task(policy.stage(offer.bodies[HERE]))
        assert process.stdout is not None
        assert await process.stdout.readline() == b"0\n"
        process.kill()
        await process.wait()
        offer.answered(THERE)
        with pytest.raises(
            PolicyUpdateFailed, match=r"^the version was not received: bucket \d+ of \d+, model-\S+: .*$"
        ):
            await staging
        offer.answered(HERE)
    assert (policy.live_version, await answer(policy)) == (live, before)

    found = await staged(policy, trainer, path)
    await policy.commit(found.version)
    assert trainer.difference(found.engines[0]) < TOLERANCE
