"""What lies where: counts by hand, a pass on shapes against the same pass with content, and what does not fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import Recipe, RecipeError
from gymfleet_trainer.errors import UnsupportedModel
from gymfleet_trainer.model.families import empty_model
from gymfleet_trainer.model.held import Held, held
from gymfleet_trainer.model.memory import LiveBytes, Microbatch, ModelSize, microbatch_bytes
from gymfleet_trainer.model.optimizer import OptimizerOptions
from gymfleet_trainer.model.policy_model import PolicyModel
from gymfleet_trainer.run.devices import GIB, Devices
from gymfleet_trainer.run.memory_plan import MemoryPlan, memory_plan
from torch import nn

from tests.fixtures.small_models import VOCAB, config_of, save_small_model

REINFORCE = {"kind": "reinforce", "steps": 1, "tokens_per_microbatch": 512}


def planned(gpus: str, stages: list[dict[str, Any]] | None = None, **changes: Any) -> MemoryPlan:
    recipe: dict[str, Any] = {
        "name": "plan", "environments": [{"name": "maze"}], "model": {"scratch": {"num_layers": 1}},
        "inference": {"max_model_len": 512, "kv_cache_gib": 0.5},
        "rollout": {"limits": {"max_context_tokens": 512}}, "stages": stages or [REINFORCE],
    }  # fmt: skip
    return memory_plan(Recipe.model_validate({**recipe, **changes}), Devices.parse(gpus))


def parts(plan: MemoryPlan, device: int = 0, process: int = 0) -> dict[str, int]:
    return {part.what: part.size_bytes for part in plan.devices[device].processes[process].parts}


def test_parameters_are_counted_once() -> None:
    # A layer: query and output 128 x 128, key and value 128 x 64, three of 128 x 96, two norms of 128.
    layer = 2 * 128 * 128 + 2 * 128 * 64 + 3 * 128 * 96 + 2 * 128

    untied = ModelSize.of(empty_model(config_of("llama")))
    tied = ModelSize.of(empty_model(config_of("gemma")))
    vision = ModelSize.of(empty_model(config_of("gemma3")))

    assert untied == ModelSize(
        total=4 * layer + 2 * VOCAB * 128 + 128, trained=4 * layer + 2 * VOCAB * 128 + 128,
        body=4 * layer + VOCAB * 128 + 128, outer=2 * VOCAB * 128 + 128, largest_layer=layer,
    )  # fmt: skip
    assert tied.total == tied.trained == tied.body
    assert vision.total > vision.trained == vision.body


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("model_type", ["llama", "gemma2", "qwen3_moe"])
def test_a_pass_on_shapes_takes_what_one_with_content_takes(
    model_type: str, recompute: bool, dtype: torch.dtype, tmp_path: Path
) -> None:
    save_small_model(model_type, tmp_path)
    microbatch = Microbatch(tokens=512, length=128)
    policy = PolicyModel.from_pretrained(tmp_path, dtype=dtype, gradient_checkpointing=recompute)
    batch = microbatch.packed()
    for parameter in policy.parameters():
        parameter.grad = torch.zeros_like(parameter)

    with LiveBytes() as live:
        policy.token_logprobs(batch).logprobs.sum().backward()  # type: ignore[no-untyped-call]
    counted = microbatch_bytes(config_of(model_type), microbatch, dtype=dtype, on_gpu=False, recompute=recompute)

    assert (len(batch.lengths), batch.num_tokens, len(batch.trained)) == (4, 512, 4 * 127)
    assert counted == pytest.approx(live.most, rel=0.05)


def test_recomputation_and_a_gpus_kernel_take_less() -> None:
    config, microbatch = config_of("llama"), Microbatch(tokens=2048, length=512)

    def counted(*, on_gpu: bool, recompute: bool, given: Microbatch = microbatch) -> int:
        return microbatch_bytes(config, given, dtype=torch.float32, on_gpu=on_gpu, recompute=recompute)

    everything, without_scores = counted(on_gpu=False, recompute=False), counted(on_gpu=True, recompute=False)
    assert everything > without_scores > counted(on_gpu=True, recompute=True)
    assert counted(on_gpu=True, recompute=False, given=Microbatch(4096, 512)) == pytest.approx(
        2 * without_scores, rel=0.15
    )


def test_every_trained_weight_takes_sixteen_bytes() -> None:
    plan = planned("2xh100")

    found, size = parts(plan), plan.num_parameters
    assert found.keys() == {"weights", "gradients", "optimiser", "activations", "process"}
    assert [found[what] for what in ("weights", "gradients", "optimiser")] == [4 * size, 4 * size, 8 * size]
    engine = parts(plan, device=1)
    assert (engine["weights"], engine["KV cache"]) == (4 * size, GIB // 2)
    assert plan.faults == ()
    assert plan.stage == "stages.reinforce"


def test_references_critics_and_reward_models_are_held_beside_the_policy() -> None:
    kl = planned("1xh100", [REINFORCE | {"kl": {"coefficient": 0.01}}])
    ppo = planned("1xh100", [REINFORCE | {"algorithm": "ppo"}])
    data = {"data": "episodes.jsonl"}
    reward = planned("1xh100", [{"kind": "bradley_terry", "name": "goal", **data}])
    size, head = kl.num_parameters, 512 * 128

    assert parts(kl)["reference"] == 4 * size
    assert parts(ppo)["critic with optimiser"] == 16 * (size - head)
    assert parts(ppo)["activations"] == 2 * parts(kl)["activations"]
    assert (parts(reward)["policy"], parts(reward)["weights"]) == (4 * size, 4 * (size - head))


def test_the_rows_of_a_pair_are_in_one_microbatch() -> None:
    def activations(**stage: Any) -> int:
        given = {"data": "stage", "tokens_per_microbatch": 512, **stage}
        collect = {"kind": "collect", "name": "stage"}
        return parts(planned("1xh100", [collect, given]))["activations"]

    alone, together = activations(kind="preference", algorithm="kto"), activations(kind="preference")
    assert together == pytest.approx(2 * alone, rel=0.15)
    assert activations(kind="bradley_terry") == activations(kind="generative_judge") == together
    assert activations(kind="process_reward") == alone


def test_rows_of_files_and_transcripts_are_as_long_as_the_model_takes() -> None:
    def activations(data: str, kind: str = "preference") -> int:
        learns = {"kind": kind, "data": data, "tokens_per_microbatch": 256}
        shorter = {"rollout": {"limits": {"max_context_tokens": 256}}}
        return parts(planned("1xh100", [{"kind": "collect", "name": "own"}, learns], **shorter))["activations"]

    assert activations("pairs.jsonl") == pytest.approx(2 * activations("own"), rel=0.15)
    assert activations("own", "bradley_terry") == activations("pairs.jsonl")


def test_the_stage_that_needs_most_is_planned_for() -> None:
    sft = {"kind": "sft", "data": "episodes.jsonl"}

    assert planned("1xh100", [sft, REINFORCE]).stage == "stages.sft", "4,096 tokens, and not 512"
    assert planned("1xh100", [sft, REINFORCE | {"tokens_per_microbatch": 8192}]).stage == "stages.reinforce"


def test_workers_take_the_first_gpus_and_engines_the_others() -> None:
    plan = planned("8xh100", trainer={"workers": 4}, scale={"rollouts": 2})

    names = [[process.name for process in device.processes] for device in plan.devices]
    assert names == [[f"trainer, worker {rank}"] for rank in range(4)] + [["engine 0"], ["engine 1"], [], []]
    size = plan.num_parameters
    assert parts(plan)["optimiser"] == 8 * size // 4
    assert "gathered layers" in parts(plan)
    assert not any("share" in note for note in plan.notes)


def test_engines_that_have_no_gpu_left_are_refused_as_by_the_run() -> None:
    plan = planned("2xh100", trainer={"workers": 2})

    assert [len(device.processes) for device in plan.devices] == [2, 1]
    (fault,) = plan.faults
    assert fault == (
        "scale.rollouts = 1: each engine takes a GPU, and the trainer leaves 0 of 2: give [placement] colocated = true "
        "to share, or more to --gpus"
    )
    assert not planned("2xh100").faults
    assert not planned("1xh100", placement={"colocated": True}).faults
    assert not planned("1xh100", placement={"trainer": [0], "engines": [0], "colocated": True}).faults
    assert planned("2xh100", scale={"rollouts": 2}).faults[0].startswith("scale.rollouts = 2: ")
    assert not planned("1xh100", trainer_device="cpu").faults


def test_servers_may_share_the_trainers_gpus() -> None:
    servers = {"backend": "server", "urls": ["http://a:1"], "max_model_len": 512, "kv_cache_gib": 0.5}
    plan = planned("1xh100", inference=servers)
    by_turns = planned("1xh100", inference=servers, placement={"colocated": True})

    assert plan.faults == by_turns.faults == ()
    assert "1 workers and 1 servers share 1 GPUs" in plan.notes
    assert not any("share" in note for note in by_turns.notes)


def test_on_a_gpu_that_is_shared_by_turns_the_turn_counts_that_needs_most() -> None:
    plan = planned("1xh100", placement={"colocated": True})
    apart = planned("2xh100")

    size, context = plan.num_parameters, GIB
    gpu, main = plan.devices
    trainer, engine = (sum(parts(apart, device=device).values()) for device in range(2))
    # Gradients and activations are gone when the engine wakes; an engine that sleeps has nothing but its context.
    updating, playing = trainer + context, 12 * size + context + engine
    assert gpu.turns == (updating, playing)
    assert gpu.used_bytes == max(updating, playing) < trainer + engine
    assert parts(plan, device=1) == {"weights": 4 * size}, "which wait in main memory"
    assert main.processes[0].name == "engine 0, asleep"
    assert main.size_bytes is None
    assert plan.as_dict()["devices"][0]["used_bytes"] == gpu.used_bytes
    said = f"GPU 0 (H100): {updating / GIB:.2f} GiB while engines sleep, {playing / GIB:.2f} GiB while they are awake"
    assert said in plan.notes
    assert not any("share" in note for note in plan.notes)
    assert planned("1xh100").devices[0].used_bytes == trainer + engine, "without turns both at once"


def test_what_is_needed_between_updates() -> None:
    def playing(stages: list[dict[str, Any]] | None = None, **changes: Any) -> int:
        plan = planned("1xh100", stages, placement={"colocated": True}, **changes)
        trainer, engine = plan.devices[0].processes
        assert plan.devices[0].turns[1] == trainer.resting_bytes + engine.size_bytes
        return trainer.resting_bytes - GIB

    size, data = planned("1xh100").num_parameters, {"data": "episodes.jsonl"}
    coarse = {"dtype": "bfloat16", "max_model_len": 512}

    assert playing() == 12 * size, "weights and moments"
    assert playing(inference=coarse) == 16 * size, "and weights as they are published, to be compared"
    assert playing([REINFORCE | {"kl": {"coefficient": 0.01}}]) == 16 * size, "a reference"
    assert playing([{"kind": "sft", **data}]) == 4 * size, "the moments are dropped before the engines wake"
    assert playing([{"kind": "bradley_terry", "name": "goal", **data}]) == 4 * size
    assert playing([{"kind": "sft", **data}, REINFORCE]) == 12 * size, "of the stage that keeps most"


@pytest.mark.parametrize("offload", [False, True])
def test_a_version_that_engines_load_from_the_gpu_lies_there(offload: bool) -> None:
    def of(transfer: str, **changes: Any) -> MemoryPlan:
        trainer = {"cpu_offload": offload}
        return planned(
            "1xh100", placement={"colocated": True}, trainer=trainer, publish={"transfer": transfer}, **changes
        )

    engines, disk = {"dtype": "bfloat16", "max_model_len": 512}, of("disk")
    size = disk.num_parameters
    whole, half = of("cuda_ipc"), of("cuda_ipc", inference=engines)

    assert (parts(whole)["version for engines"], parts(half)["version for engines"]) == (4 * size, 2 * size)
    assert "version for engines" not in parts(disk)
    assert [after - before for before, after in zip(disk.devices[0].turns, whole.devices[0].turns, strict=True)] == [
        4 * size, 4 * size,
    ], "it stays for as long as the run lives"  # fmt: skip
    adapters = of("cuda_ipc", model={"scratch": {"num_layers": 1}, "lora": {"rank": 2}})
    assert "version for engines" not in parts(adapters), "which are sent as files"


def test_a_placement_says_what_lies_where() -> None:
    def names(gpus: str, **changes: Any) -> list[list[str]]:
        plan = planned(gpus, **changes)
        return [[process.name for process in device.processes] for device in plan.devices]

    worker, engine, other = "trainer, worker 0", "engine 0", "engine 1"
    assert names("3xh100", placement={"trainer": [2], "engines": [0]}) == [[engine], [], [worker]]
    assert names("3xh100", placement={"engines": [0]}) == [[engine], [worker], []], "the first that no engine has"
    assert names("3xh100", placement={"trainer": [1]}) == [[engine], [worker], []]
    assert names("2xh100", placement={"colocated": True}, scale={"rollouts": 2}) == [
        [worker, engine, other], [], ["engine 0, asleep", "engine 1, asleep"],
    ]  # fmt: skip
    one_of_two = planned("2xh100", placement={"colocated": True, "engines": [0, 1]}, scale={"rollouts": 2})
    assert [len(device.sleepers) for device in one_of_two.devices] == [1, 0, 0], "the other has its GPU for itself"
    assert one_of_two.devices[1].used_bytes == one_of_two.devices[1].processes[0].size_bytes
    assert names("1xcpu", placement={"colocated": True}) == [[worker, engine]]


def test_a_placement_beyond_what_there_is_is_a_fault() -> None:
    plan = planned("2xh100", placement={"engines": [2]})

    assert plan.faults == ("placement names GPU 2, and there are 0 to 1: give others, or more to --gpus",)


def test_what_does_not_fit_is_said_with_what_would_help() -> None:
    small = planned("1x1.5GiB", trainer={"workers": 2})
    weights = planned(
        "1x2.6GiB", [REINFORCE | {"tokens_per_microbatch": 64}], rollout={"limits": {"max_context_tokens": 64}},
        model={"scratch": {"num_layers": 1, "intermediate_size": 262_144}},
        inference={"max_model_len": 512, "kv_cache_gib": 0.5, "max_num_seqs": 1, "max_num_batched_tokens": 128},
    )  # fmt: skip
    cache = planned("1xh100", inference={"max_model_len": 400_000, "kv_cache_gib": 0.1})

    assert small.faults[0] == "trainer.workers = 2: each takes a GPU, and there are 1: lower it"
    assert small.faults[1].startswith("GPU 0 (1.5 GiB) has 1.4 GiB, and ")
    assert "most are KV cache of engine 0, 0.5 GiB; what helps: more GPUs, so that" in small.faults[1]
    assert "optimiser of trainer, worker 0" in weights.faults[1]
    assert weights.faults[1].endswith('or more trainer.workers, which share it, or optimizer.kind = "adamw_8bit"')
    assert (
        "holds 209,715 tokens, and one sequence may have 400,000: give inference.kv_cache_gib at least 0.191, or"
        in (cache.faults[-1])
    )


def test_a_trainer_without_a_gpu_is_planned_in_the_memory_of_the_machine() -> None:
    plan = planned("1xcpu", trainer_device="cpu")

    (device,) = plan.devices
    assert device.name == "this machine"
    assert [process.name for process in device.processes] == ["trainer, worker 0", "engine 0"]
    assert parts(plan)["process"] > 50 << 20, "what this very process has loaded"


@pytest.mark.parametrize(
    ("given", "count", "kind", "gib"),
    [("8xH200", 8, "H200", 139.8), ("h100", 1, "H100", 79.2), ("4x80GiB", 4, "80 GiB", 80.0)],
)
def test_devices_are_read(given: str, count: int, kind: str, gib: float) -> None:
    assert Devices.parse(given) == Devices(count, kind, int(gib * GIB))


@pytest.mark.parametrize("given", ["", "8x", "x8", "0xH100", "8xH999", "2xcpu", "8 x H100"])
def test_what_are_no_devices_is_refused(given: str) -> None:
    with pytest.raises(RecipeError, match="--gpus"):
        Devices.parse(given)


def test_a_model_that_cannot_be_trained_is_not_planned(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match="no config of a model"):
        planned("1xh100", model={"path": str(tmp_path)})


ADAPTERS = {"rank": 4, "target_modules": ["q_proj"], "max_loras": 3}


def test_adapters_are_trained_and_the_weights_are_held_once(tmp_path: Path) -> None:
    save_small_model("llama", tmp_path)
    model = {"path": str(tmp_path), "lora": ADAPTERS}
    kl = REINFORCE | {"kl": {"coefficient": 0.01}}
    sizes = {"dtype": "bfloat16", "max_model_len": 512}

    gpu = planned("2xh100", [kl], model=model, trainer_dtype="bfloat16", inference=sizes)
    cpu = planned("1xcpu", [kl], model=model)

    # In each of four layers one of 128 x 128, as 4 x 128 and 128 x 4; the policy's in float32 and the reference's.
    adapter = 4 * 2 * 4 * 128 * 4
    found, size = parts(gpu), gpu.num_parameters
    assert "reference" not in found
    assert (found["weights"], found["gradients"], found["optimiser"]) == (2 * size + 2 * adapter, adapter, 2 * adapter)
    assert parts(cpu)["weights"] == 4 * size + 3 * adapter, "a CPU's memory also has the adapter as it began"
    lost, whole = parts(cpu), parts(planned("1xcpu", [kl], model={"path": str(tmp_path)}))
    assert lost["lost between blocks"] == pytest.approx(0.45 * lost["activations"], rel=1e-6)
    assert whole["lost between blocks"] == pytest.approx(0.15 * whole["activations"], rel=1e-6)
    # vLLM has room for three of rank 4 in all seven: 128 x 128 and 128 x 64 twice, 128 x 96 three times.
    assert parts(gpu, device=1)["adapters"] == 3 * 4 * 4 * (2 * 256 + 2 * 192 + 3 * 224) * 2


def test_a_critic_beside_adapters_is_trained_whole(tmp_path: Path) -> None:
    save_small_model("llama", tmp_path)
    model = {"path": str(tmp_path), "lora": ADAPTERS}
    alone, ppo = (
        planned("1xh100", [REINFORCE | {"algorithm": name}], model=model, trainer_dtype="bfloat16")
        for name in ("reinforce_pp", "ppo")
    )
    whole = planned("1xh100", model={"path": str(tmp_path)}, trainer_dtype="bfloat16")

    assert parts(ppo)["critic with optimiser"] == 16 * (ppo.num_parameters - VOCAB * 128)
    assert parts(ppo)["activations"] == parts(alone)["activations"] + parts(whole)["activations"]


@pytest.mark.parametrize(
    ("kind", "master", "weight", "moments"),
    [
        # A matrix of 4 x 256 has 8 bytes of moments each in float32, or 2 and two scales of 4 bytes for each row.
        pytest.param("adamw", "float32", 4, 1024 * 8 + 9 * 8, id="adamw"),
        pytest.param("adamw", "bfloat16", 2, 1024 * 8 + 9 * 8, id="float32 moments of bfloat16"),
        pytest.param("adamw_8bit", "float32", 4, 1024 * 2 + 4 * 8 + 9 * 8, id="8 bits, and a bias in float32"),
        # 4 rows and 256 columns, and of the bias all.
        pytest.param("adafactor", "bfloat16", 2, (4 + 256 + 9) * 4, id="rows and columns"),
    ],
)
def test_an_optimiser_is_counted_as_it_is(kind: Any, master: Any, weight: int, moments: int) -> None:
    module, section = nn.Linear(256, 4, bias=False, device="meta"), OptimizerOptions(kind=kind, master_dtype=master)
    module.bias = nn.Parameter(torch.empty(9, device="meta"))
    module.to(torch.bfloat16 if weight == 2 else torch.float32)

    assert held(module, section) == Held(1033 * weight, 1033 * weight, moments)
    assert held(module, None) == Held(1033 * weight, 0, 0)
    # Of three workers the first has 2 of 4 rows, and 3 of 9; sums over columns each has whole.
    shared = held(module, section, workers=3)
    assert shared.weights == (2 * 256 + 3) * weight
    if kind == "adafactor":
        assert shared.optimizer == (2 + 256 + 3) * 4


def test_the_optimiser_of_a_stage_is_planned_for() -> None:
    less = planned(
        "1xh100", [REINFORCE | {"optimizer": {"kind": "adafactor", "master_dtype": "bfloat16"}}],
        trainer_dtype="bfloat16",
    )  # fmt: skip

    found, size = parts(less), less.num_parameters
    assert (found["weights"], found["gradients"]) == (2 * size, 2 * size)
    assert 0 < found["optimiser"] < size / 10


def test_what_is_offloaded_lies_in_main_memory() -> None:
    plan = planned("3xh100", trainer={"workers": 2, "cpu_offload": True})

    assert parts(plan).keys() == {"gathered layers", "activations", "process"}
    assert plan.devices[-1].name == "main memory"
    assert plan.devices[-1].size_bytes is None
    beside = parts(plan, device=3, process=1)
    assert beside["optimiser"] == 8 * plan.num_parameters // 2
    assert plan.faults == ()


def test_a_trainer_that_takes_no_gpu_is_shown_in_main_memory() -> None:
    plan = planned("1xh100", trainer_device="cpu")

    assert [process.name for process in plan.devices[0].processes] == ["engine 0"]
    assert parts(plan, device=1)["weights"] == 4 * plan.num_parameters


def test_publishing_may_take_more_than_an_update(tmp_path: Path) -> None:
    save_small_model("llama", tmp_path)
    stages = [REINFORCE | {"tokens_per_microbatch": 64}]
    changes = {
        "model": {"path": str(tmp_path), "lora": ADAPTERS}, "rollout": {"limits": {"max_context_tokens": 8}},
    }  # fmt: skip
    coarse = planned("2xh100", stages, **changes, inference={"dtype": "bfloat16", "max_model_len": 64})
    same = planned("2xh100", stages, **changes, inference={"max_model_len": 64})

    found = parts(coarse)
    copied = found["weights"]
    assert found["more while publishing"] == copied - found["gradients"] - found["activations"] > 0
    assert "more while publishing" not in parts(same)


def test_loading_may_take_more_than_an_update_on_a_cpu(tmp_path: Path) -> None:
    save_small_model("llama", tmp_path)
    stages = [REINFORCE | {"tokens_per_microbatch": 64}]
    changes: dict[str, Any] = {
        "model": {"path": str(tmp_path), "lora": ADAPTERS}, "rollout": {"limits": {"max_context_tokens": 8}},
        "inference": {"dtype": "bfloat16", "max_model_len": 64}, "trainer_dtype": "bfloat16",
    }  # fmt: skip
    coarse = planned("1xcpu", stages, **changes)
    whole = planned("1xcpu", stages, **changes | {"model": {"path": str(tmp_path)}})
    shared = planned("1xcpu", stages, **changes, trainer={"workers": 2})

    found = parts(coarse)
    more = found["more while loading"]
    update = sum(size for what, size in found.items() if what not in ("more while loading", "process"))
    assert more == 4 * coarse.num_parameters + found["weights"] - update > 0, "files in float32 are mapped"
    for other in (whole, shared, planned("2xh100", stages, **changes)):
        assert "more while loading" not in parts(other)
