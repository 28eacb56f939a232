"""What `gymfleet-rollout` says before it serves: settings, the model's directory, the weights' headers."""

import json
import os
import struct
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from gymfleet_contracts.recipe import Recipe
from gymfleet_contracts.recipe_sections import EngineSizes
from gymfleet_kit.plugins import PluginError
from gymfleet_rollout.backend import InferenceBackend, backend_of
from gymfleet_rollout.inference.base import EngineConfig, WeightsRejected
from gymfleet_rollout.inference.engine import adapter_arguments
from gymfleet_rollout.inference.weights import require_adapter, require_same_tensors, tensor_shapes
from gymfleet_rollout.model import ModelNotFound, find_model, longest_context, vocab_size
from gymfleet_rollout.recipe import settings_for
from gymfleet_rollout.service import engine_config
from gymfleet_rollout.settings import RolloutSettings
from pydantic import ValidationError
from safetensors.torch import save_file

from tests.fixtures.strategies import EVALUATES, EVALUATING

PREFIX = "GYMFLEET_ROLLOUT_"


def settings(monkeypatch: pytest.MonkeyPatch, **given: str) -> RolloutSettings:
    for name, value in {"model": "x", **given}.items():
        monkeypatch.setenv(f"{PREFIX}{name}".upper(), value)
    return RolloutSettings()  # type: ignore[call-arg]


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    found = settings(
        monkeypatch, backend="server", server_urls='["http://127.0.0.1:8300"]', gateway_api_key="secret", port="9000"
    )

    assert (found.port, str(found.server_urls[0])) == (9000, "http://127.0.0.1:8300/")
    assert found.host == "127.0.0.1"
    assert "secret" not in repr(found)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        pytest.param({"server_urls": '["nowhere"]'}, "server_urls", id="no URL"),
        pytest.param({"backend_options": "[]"}, "backend_options", id="options that are no table"),
        pytest.param({"modell": "y"}, "MODELL", id="misspelt"),
        pytest.param({"block_size": "48"}, "multiple of 32", id="block size that the CPU backend has no kernel for"),
        pytest.param({"dtype": "int8"}, "float32", id="unknown dtype"),
    ],
)
def test_a_mistake_in_the_settings_is_named(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(ValidationError, match=complaint):
        settings(monkeypatch, **given)


def backend(settings: RolloutSettings) -> InferenceBackend[Any]:
    return backend_of(settings.backend, settings.options_of_backend, table="GYMFLEET_ROLLOUT_BACKEND_OPTIONS")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"backend": "server"}, r"give urls, or discover, as a list .*: GYMFLEET_ROLLOUT_SERVER_URLS or"),
        ({"server_urls": '["http://127.0.0.1:1"]'}, r"OPTIONS\.urls: Extra .* \(the options of embedded: none\)"),
        ({"server_start_timeout_s": "3"}, r"OPTIONS\.start_timeout_s: Extra inputs"),
        ({"backend_options": '{"thredas": 2}'}, r"GYMFLEET_ROLLOUT_BACKEND_OPTIONS\.thredas: Extra inputs"),
        (
            {"backend": "sever", "server_urls": '["http://127.0.0.1:1"]'},
            "there is no backend 'sever'; known: embedded, server; or give package.module:Class",
        ),
        ({"backend": "./nothing.py"}, "there is no file nothing.py"),
    ],
)
def test_a_backend_that_cannot_be_used_is_told_with_what_can(
    monkeypatch: pytest.MonkeyPatch, given: dict[str, str], complaint: str
) -> None:
    with pytest.raises(PluginError, match=complaint) as caught:
        backend(settings(monkeypatch, **given))

    assert "\n" not in str(caught.value)


def test_a_variable_of_its_own_wins_over_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    found = backend(
        settings(
            monkeypatch, backend="server", server_urls='["http://a:1"]', server_start_timeout_s="7",
            backend_options='{"urls": ["http://b:1"], "discover": ["http://c:1"]}',
        )
    ).options  # fmt: skip

    assert (found.start_timeout_s, [*map(str, found.urls)]) == (7, ["http://a:1/"])
    assert [*map(str, found.discover)] == ["http://c:1/"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps({"vocab_size": 77}))
    save_file({"a": torch.zeros(2, 3), "lm_head.weight": torch.zeros(4)}, path / "model.safetensors")
    return path


def test_a_model_directory(model: Path) -> None:
    assert find_model(str(model)) == model
    assert vocab_size(model) == 77


@pytest.mark.parametrize("name", ["/no/such/place", "./nowhere", "~/nowhere-at-all", "nowhere", "a/b/c"])
def test_a_model_that_is_not_there(name: str) -> None:
    with pytest.raises(ModelNotFound, match="no model directory at"):
        find_model(name)


@pytest.mark.parametrize("lacking", ["config.json", "model.safetensors"])
def test_a_directory_that_is_no_model(model: Path, lacking: str) -> None:
    (model / lacking).unlink()

    with pytest.raises(ModelNotFound, match=lacking.split(".")[1]):
        find_model(str(model))


@pytest.mark.parametrize(
    ("config", "given", "context"),
    [
        ({"max_position_embeddings": 2048}, {}, 2048),
        ({"max_position_embeddings": 2048}, {"max_model_len": 4000}, 4000),
        ({"max_position_embeddings": 100_000}, {}, EngineSizes().max_model_len),
        ({"text_config": {"max_position_embeddings": 512}}, {}, 512),
        ({}, {}, EngineSizes().max_model_len),
    ],
)
def test_the_engines_context_fits_the_model_unless_one_is_given(
    model: Path, config: dict[str, Any], given: dict[str, Any], context: int
) -> None:
    (model / "config.json").write_text(json.dumps(config))
    chosen = RolloutSettings(model=str(model), **given)

    assert longest_context(model) == config.get("text_config", config).get("max_position_embeddings")
    assert engine_config(chosen, model).max_model_len == context


@pytest.mark.parametrize("config", ["[]", "{}", "nonsense", '{"vocab_size": null}'])
def test_a_config_without_a_vocabulary(model: Path, config: str) -> None:
    (model / "config.json").write_text(config)

    with pytest.raises(ModelNotFound, match="vocab_size"):
        vocab_size(model)


def test_the_process_ends_with_one_line_and_exit_code_2(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gymfleet_rollout.main"],
        env={f"{PREFIX}MODEL": str(tmp_path / "nowhere"), "PATH": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert done.stderr == f"error: GYMFLEET_ROLLOUT_MODEL: no model directory at {tmp_path / 'nowhere'}\n"


def test_a_recipe_whose_strategy_evaluates_needs_the_reward_services_address(model: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(EVALUATING + EVALUATES)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        f'name = "r"\n[model]\npath = "{model}"\n[[environments]]\nname = "maze"\n[rollout.evaluator.goal]\n'
        f'[rollout.strategy]\nuse = "{tmp_path / "mine.py"}"\n{MEASURE}'
    )
    done = subprocess.run(
        [sys.executable, "-m", "gymfleet_rollout.main", "--recipe", str(recipe), "--run-dir", str(tmp_path / "run")],
        env={"PATH": "", "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip

    assert (done.returncode, done.stderr) == (
        2,
        "error: rollout.strategy of r has nodes valued by the reward service: set GYMFLEET_ROLLOUT_REWARD_URL\n",
    )


def test_a_missing_compiler_is_named(model: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gymfleet_rollout.main"],
        env={f"{PREFIX}MODEL": str(model), f"{PREFIX}ENFORCE_EAGER": "false", "PATH": ""},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert "the C++ compiler 'g++' is not on PATH" in done.stderr
    assert done.stderr.count("\n") == 1


def sharded(model: Path, listed: dict[str, str]) -> Path:
    """The same model in two files and an index of them."""
    (model / "model.safetensors").rename(model / "model-1.safetensors")
    save_file({"b": torch.zeros(5), "left.over": torch.zeros(1)}, model / "model-2.safetensors")
    (model / "model.safetensors.index.json").write_text(json.dumps({"weight_map": listed}))
    return model


LISTED = {"a": "model-1.safetensors", "lm_head.weight": "model-1.safetensors", "b": "model-2.safetensors"}


def test_shapes_are_read_from_the_files_and_for_the_tensors_of_the_index(model: Path) -> None:
    sharded(model, LISTED)
    (model / "consolidated.safetensors").write_bytes(b"another form, which is not even read")

    assert tensor_shapes(model) == {"a": (2, 3), "lm_head.weight": (4,), "b": (5,)}


def test_shapes_are_read_from_all_files_where_none_is_said_to_be_the_model(model: Path) -> None:
    sharded(model, LISTED)
    (model / "model.safetensors.index.json").unlink()
    save_file({"other.name.for.a": torch.zeros(2, 3)}, model / "consolidated-1.safetensors")

    assert tensor_shapes(model) == {"a": (2, 3), "lm_head.weight": (4,), "b": (5,), "left.over": (1,)}


def test_what_lies_beside_the_model_is_not_of_it(model: Path) -> None:
    save_file({"other.name.for.a": torch.zeros(2, 3)}, model / "consolidated.safetensors")
    (model / "pytorch_model.bin").write_bytes(b"the same once more")

    assert tensor_shapes(model) == {"a": (2, 3), "lm_head.weight": (4,)}


def test_tables_that_are_computed_are_no_tensors_of_a_model(model: Path) -> None:
    save_file(
        {"a": torch.zeros(1), "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}, model / "model.safetensors"
    )

    assert tensor_shapes(model) == {"a": (1,)}


@pytest.mark.parametrize(
    ("listed", "complaint"),
    [
        (LISTED | {"c": "model-2.safetensors"}, r"lists c \(1 tensors\), which its files have not got"),
        (LISTED | {"c": "model-3.safetensors"}, r"model-3\.safetensors is not a readable"),
        (LISTED | {"c": "../elsewhere.safetensors"}, "by the names of files beside it"),
        ({}, "by the names of files beside it"),
        (None, "is not a readable index"),
    ],
)
def test_an_index_that_does_not_fit_is_rejected(model: Path, listed: Any, complaint: str) -> None:
    sharded(model, listed)

    with pytest.raises(WeightsRejected, match=complaint):
        tensor_shapes(model)


@pytest.mark.parametrize(("tied", "accepted"), [(True, True), (None, True), (False, False)])
def test_a_head_may_be_left_out_of_a_tied_model_alone(tied: bool | None, accepted: bool, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({} if tied is None else {"tie_word_embeddings": tied}))
    expected: dict[str, tuple[int, ...]] = {"a": (1,), "language_model.lm_head.weight": (2,)}

    with nullcontext() if accepted else pytest.raises(WeightsRejected, match=r"lacks language_model\.lm_head"):
        require_same_tensors(expected, {"a": (1,)}, tmp_path)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"1234",
        struct.pack("<Q", 2**60) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 9) + b'{"a": {}}',
        struct.pack("<Q", 4) + b"nope",
    ],
)
def test_a_damaged_file_is_rejected(model: Path, content: bytes) -> None:
    (model / "model.safetensors").write_bytes(content)

    with pytest.raises(WeightsRejected, match=r"model\.safetensors is not a"):
        tensor_shapes(model)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"a": (2, 3)}, None),
        ({"a": (2, 3), "lm_head.weight": (4,)}, None),
        ({"a": (2, 3), "lm_head.weight": (5,)}, "other shapes for lm_head.weight"),
        ({"lm_head.weight": (4,)}, "lacks a"),
        ({"a": (2, 3), "x": (1,)}, "has unknown x"),
    ],
    ids=str,
)
def test_the_same_tensors_or_none(given: dict[str, tuple[int, ...]], complaint: str | None) -> None:
    expected = {"a": (2, 3), "lm_head.weight": (4,)}
    if complaint is None:
        require_same_tensors(expected, given, Path("w"))
        return

    with pytest.raises(WeightsRejected, match=complaint):
        require_same_tensors(expected, given, Path("w"))


PAIR = {"base_model.model.a.lora_A.weight": (4, 3), "base_model.model.a.lora_B.weight": (2, 4)}
FIRST, SECOND = PAIR


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        pytest.param({}, None, id="sound"),
        pytest.param({SECOND: None}, f"has beside the pairs of an adapter, {SECOND}", id="a half of one"),
        pytest.param({FIRST: None}, f"has beside the pairs of an adapter, {SECOND}", id="the other half"),
        pytest.param({"a": (2, 3)}, "has beside the pairs of an adapter, a", id="a weight of the model"),
        pytest.param({FIRST: (4, 5)}, "an adapter of base_model.model.a, which is no such layer", id="other inputs"),
        pytest.param({SECOND: (9, 4)}, "which is no such layer", id="other outputs"),
        pytest.param({SECOND: (2, 3)}, "which is no such layer", id="two ranks"),
        pytest.param({FIRST: (3,)}, "which is no such layer", id="a vector"),
        pytest.param(
            {FIRST.replace(".a.", ".b."): (4, 3), SECOND.replace(".a.", ".b."): (2, 4)},
            "an adapter of base_model.model.b, which is no such layer",
            id="a layer that the model has not got",
        ),
        pytest.param(
            {FIRST: (5, 3), SECOND: (2, 5)}, "rank 5, .* rank 4 at most: GYMFLEET_ROLLOUT_MAX_LORA_RANK=5", id="rank"
        ),
    ],
)
def test_an_adapter_fits_the_model(tmp_path: Path, changes: dict[str, Any], complaint: str | None) -> None:
    shapes = {name: shape for name, shape in {**PAIR, **changes}.items() if shape is not None}
    save_file({name: torch.zeros(shape) for name, shape in shapes.items()}, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text("{}")
    base = {"a.weight": (2, 3), "head.weight": (7,)}
    if complaint is None:
        require_adapter(base, tmp_path, 4)
        return

    with pytest.raises(WeightsRejected, match=complaint):
        require_adapter(base, tmp_path, 4)


def test_weights_are_no_adapter(model: Path) -> None:
    with pytest.raises(
        WeightsRejected, match=r"holds no adapter_config\.json, and this service was started for adapters"
    ):
        require_adapter({}, model, 4)


@pytest.mark.parametrize(("rank", "started_for"), [(1, 1), (2, 8), (8, 8), (9, 16), (257, 320), (512, 512)])
def test_an_engine_is_started_for_the_next_rank_that_there_is(rank: int, started_for: int) -> None:
    config = EngineConfig(model=Path("m"), max_lora_rank=rank, max_loras=3)

    assert adapter_arguments(config) == {"enable_lora": True, "max_lora_rank": started_for, "max_loras": 3}
    assert adapter_arguments(EngineConfig(model=Path("m"))) == {}


def test_the_recipe_says_for_which_adapters_engines_are_started(
    monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path
) -> None:
    recipe = recipe_of('[model]\npath = "org/m"\n[model.lora]\nrank = 12\nmax_loras = 3')

    found = engine_config(settings_for(recipe, tmp_path)(), model)  # type: ignore[call-arg]
    assert (found.max_lora_rank, found.max_loras) == (12, 3)
    found = engine_config(settings_for(recipe_of(), tmp_path)(), model)  # type: ignore[call-arg]
    assert found.max_lora_rank == 0
    monkeypatch.setenv(f"{PREFIX}MAX_LORA_RANK", "64")
    assert settings_for(recipe, tmp_path)().max_lora_rank == 64  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("setting", "value", "complaint"),
    [
        ("MAX_LORA_RANK", "8", "mine.py loads no adapters, which [model.lora] or GYMFLEET_ROLLOUT_MAX_LORA_RANK asks"),
        ("SLEEP_MODE", "true", "mine.py do not sleep, which placement.colocated or GYMFLEET_ROLLOUT_SLEEP_MODE asks"),
    ],
)
def test_what_a_backend_does_not_do_is_told(
    setting: str, value: str, complaint: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from gymfleet_rollout.backend import InferenceBackend\n\n\nclass Mine(InferenceBackend):\n"
        "    def engine(self, replica, config):\n        raise NotImplementedError\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "gymfleet_rollout.main"],
        env={
            f"{PREFIX}MODEL": str(model), f"{PREFIX}BACKEND": str(tmp_path / "mine.py"), f"{PREFIX}{setting}": value,
            "PATH": "",
        },
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip

    assert done.returncode == 2
    assert complaint in done.stderr
    assert done.stderr.count("\n") == 1


MEASURE = '[[stages]]\nkind = "measure"\n'


def recipe_of(text: str = "", stages: str = MEASURE) -> Recipe:
    document = f'name = "r"\nseed = 5\n{text or "[model.scratch]"}\n[[environments]]\nname = "maze"\n'
    document += stages
    return Recipe.model_validate(tomllib.loads(document))


def test_engine_settings_come_from_the_recipe(tmp_path: Path) -> None:
    recipe = recipe_of(
        '[model]\npath = "org/m"\n[inference]\nbackend = "server"\nurls = ["http://a:1"]\ndtype = "bfloat16"\n'
        "max_model_len = 8192\nmax_num_seqs = 7\nmax_num_batched_tokens = 99\nkv_cache_gib = 2.5\nenforce_eager = false"
    )

    found = settings_for(recipe, tmp_path)()  # type: ignore[call-arg]

    assert (found.backend, found.options_of_backend) == ("server", {"urls": ["http://a:1"]})
    assert [str(url) for url in backend(found).options.urls] == ["http://a:1/"]
    assert (found.model, found.dtype, found.max_model_len, found.seed) == ("org/m", "bfloat16", 8192, 5)
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.kv_cache_gib) == (7, 99, 2.5)
    assert found.enforce_eager is False
    assert found.plugins == ("independent", "react")


def test_the_plugins_of_the_recipe_may_be_named_by_requests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = recipe_of(
        '[model.scratch]\n[rollout]\nformat.use = "./mine.py"\nstrategy.use = "./best.py"',
        'format = "./theirs.py"\n[[stages]]\nkind = "collect"\nstrategy.use = "./widest.py"',
    )

    expected = ("./best.py", "./mine.py", "./theirs.py", "./widest.py")
    assert settings_for(recipe, tmp_path)().plugins == expected  # type: ignore[call-arg]
    assert settings(monkeypatch).plugins == ()
    monkeypatch.setenv(f"{PREFIX}PLUGINS", '["other.py", "package.module:Class"]')
    assert settings_for(recipe, tmp_path)().plugins == ("other.py", "package.module:Class")  # type: ignore[call-arg]


def test_the_environment_wins_over_the_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, value in {
        "max_model_len": "256",
        "seed": "9",
        "backend": "server",
        "server_urls": '["http://b:1"]',
    }.items():
        monkeypatch.setenv(f"{PREFIX}{name}".upper(), value)

    found = settings_for(recipe_of(), tmp_path)()  # type: ignore[call-arg]

    assert (found.max_model_len, found.seed, found.backend) == (256, 9, "server")
    assert [str(url) for url in backend(found).options.urls] == ["http://b:1/"]
    assert found.model == str(tmp_path / "model-init")


OWN = '[model.scratch]\n[inference]\nbackend = "./mine.py"\nwidth = 2\ndepth = 3'


@pytest.mark.parametrize(
    ("given", "options"),
    [
        ({}, {"width": 2, "depth": 3}),
        ({"backend_options": '{"width": 4}'}, {"width": 4, "depth": 3}),
        ({"backend": "./mine.py", "backend_options": '{"width": 4}'}, {"width": 4, "depth": 3}),
        ({"backend": "embedded"}, {}),
        ({"backend": "./other.py", "backend_options": '{"height": 1}'}, {"height": 1}),
    ],
)
def test_options_of_the_recipe_are_those_of_its_own_backend(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: dict[str, str], options: dict[str, int]
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(f"{PREFIX}{name}".upper(), value)

    found = settings_for(recipe_of(OWN), tmp_path)()  # type: ignore[call-arg]

    assert found.backend == given.get("backend", "./mine.py")
    assert found.options_of_backend == options


def test_a_secret_file_wins_over_the_recipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gymfleet_rollout_model").write_text("given\n")
    monkeypatch.setenv("GYMFLEET_SECRETS_DIR", str(tmp_path))

    assert settings_for(recipe_of(), tmp_path)().model == "given"  # type: ignore[call-arg]


def test_what_the_recipe_may_not_decide_is_refused_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(f"{PREFIX}MODELL", "x")

    with pytest.raises(ValidationError, match="MODELL"):
        settings_for(recipe_of(), tmp_path)()  # type: ignore[call-arg]
