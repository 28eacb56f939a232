"""Where trainer and engines of a local run go, on machines whose driver's command is a script."""

from pathlib import Path
from typing import Any

import pytest
from gymfleet_cli.commands.train import is_finished
from gymfleet_cli.console import UsageProblem
from gymfleet_cli.recipes import to_toml
from gymfleet_cli.running import run_plan
from gymfleet_cli.supervisor.errors import FleetError
from gymfleet_cli.supervisor.gpus import visible_gpus
from gymfleet_cli.supervisor.placement import placement_of_engine
from gymfleet_contracts.recipe import Recipe, load_recipe
from gymfleet_trainer.run.run_directory import recipe_hash
from pydantic import ValidationError

from tests.fixtures.driver import Driver
from tests.fixtures.scored import make_recipe

VISIBLE = "CUDA_VISIBLE_DEVICES"


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (VISIBLE, "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    directory = tmp_path / "bin"
    directory.mkdir()
    return Driver(directory, monkeypatch)


def recipe_of(workers: int = 1, rollouts: int = 1, device: str = "auto", **placement: Any) -> Recipe:
    return make_recipe(
        trainer={"workers": workers}, scale={"rollouts": rollouts}, trainer_device=device, placement=placement
    )


def seen(recipe: Recipe, directory: Path) -> tuple[str | None, list[str | None]]:
    """The GPUs that the trainer sees, and those of each rollout service."""
    plan = run_plan(recipe, None, directory, directory, None)
    services = [plan.trainer("run"), *plan.rollouts(None)]
    for service in services:
        assert (VISIBLE in service.env) == ("CUDA_DEVICE_ORDER" in service.env)
        assert service.env.get("CUDA_DEVICE_ORDER", "PCI_BUS_ID") == "PCI_BUS_ID"
    trainer, *engines = [service.env.get(VISIBLE) for service in services]
    assert not [service for service in (*plan.env_servers(), *plan.rewards()) if VISIBLE in service.env]
    return trainer, engines


def test_each_process_sees_what_the_recipe_gives_it(driver: Driver, tmp_path: Path) -> None:
    driver.lists(0, 0, 0, 0)

    assert seen(recipe_of(2, 2, trainer=[0, 1], engines=[3, 2]), tmp_path) == ("0,1", ["3", "2"])
    assert seen(recipe_of(trainer=[1], engines=[1], colocated=True), tmp_path) == ("1", ["1"])


@pytest.mark.parametrize(
    ("recipe", "trainer", "engines"),
    [
        pytest.param(recipe_of(2, 2), "0,1", ["2", "3"], id="workers first"),
        pytest.param(recipe_of(engines=[0]), "1", ["0"], id="beside named engines"),
        pytest.param(recipe_of(trainer=[2]), "2", ["0"], id="beside a named trainer"),
        pytest.param(recipe_of(2, 3, colocated=True), "0,1", ["0", "1", "0"], id="shared"),
        pytest.param(recipe_of(device="cpu"), "", ["0"], id="a trainer without a GPU"),
    ],
)
def test_without_names_nobody_shares_by_accident(
    recipe: Recipe, trainer: str, engines: list[str], driver: Driver, tmp_path: Path
) -> None:
    driver.lists(0, 0, 0, 0)

    assert seen(recipe, tmp_path) == (trainer, engines)


def test_a_machine_without_a_driver_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    assert seen(recipe_of(2, 2), tmp_path) == (None, [None, None])
    assert seen(recipe_of(colocated=True), tmp_path) == (None, [None])
    with pytest.raises(UsageProblem, match=r"^placement names GPU 0, and this machine shows no GPU: leave it out$"):
        seen(recipe_of(trainer=[0]), tmp_path)


def test_engines_of_others_are_given_nothing(driver: Driver, tmp_path: Path) -> None:
    driver.lists(0)
    recipe = make_recipe(inference={"backend": "server", "urls": ["http://10.0.0.1:8000"]})

    assert seen(recipe, tmp_path) == ("0", [None])


def test_workers_of_a_cluster_take_nothing_here(
    driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.lists(0)
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")

    assert seen(recipe_of(4), tmp_path) == ("", ["0"])
    with pytest.raises(UsageProblem, match=r"scale\.rollouts = 1: .* leaves 0 of 1"):  # one process is always here
        seen(recipe_of(1), tmp_path)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        pytest.param(recipe_of(trainer=[5]), r"placement names GPU 5, and there are 0, 1", id="not there"),
        pytest.param(
            recipe_of(3),
            r"trainer\.workers = 3: each worker takes a GPU, and 2 of 2 are left: give fewer workers, or .* \"cpu\"",
            id="too few for the workers",
        ),
        pytest.param(
            recipe_of(2),
            r"scale\.rollouts = 1: each engine takes a GPU, and the trainer leaves 0 of 2: give .* colocated = true",
            id="none left",
        ),
        pytest.param(recipe_of(1, 2), r"scale\.rollouts = 2: .* leaves 1 of 2", id="one left for two"),
    ],
)
def test_what_is_not_there_is_told_before_the_start(
    recipe: Recipe, message: str, driver: Driver, tmp_path: Path
) -> None:
    driver.lists(0, 0)

    with pytest.raises(UsageProblem, match=f"^{message}"):
        seen(recipe, tmp_path)


def test_a_gpu_in_use_is_told_with_its_users(driver: Driver, tmp_path: Path) -> None:
    driver.lists(1024, 1025, 9000, apps=((1, 4321), (2, 7), (1, 99)))

    with pytest.raises(UsageProblem, match=r"^GPU 1 is in use: 1025 of 81559 MiB are taken by process 99, 4321; end"):
        seen(recipe_of(), tmp_path)
    driver.lists(1024, 1025)
    with pytest.raises(UsageProblem, match=r"^GPU 1 is in use: 1025 of 81559 MiB are taken; end what uses it, or name"):
        seen(recipe_of(), tmp_path)
    driver.lists(1024, 0, 9000)
    assert seen(recipe_of(), tmp_path) == ("0", ["1"]), "what nobody is given may be in use"


@pytest.mark.parametrize(("given", "left"), [("2,0", [0, 2]), ("GPU-a1", [1]), ("", []), ("0, GPU-a2", [0, 2])])
def test_the_users_own_choice_holds(
    given: str, left: list[int], driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.lists(0, 0, 0)
    monkeypatch.setenv(VISIBLE, given)

    assert sorted(visible_gpus()) == left


def test_up_gives_its_engine_a_gpu(driver: Driver) -> None:
    driver.lists(0, 0)
    assert placement_of_engine().for_engine(0)[VISIBLE] == "0"

    driver.lists(70_000, 0)
    with pytest.raises(UsageProblem, match="GPU 0 is in use"):
        placement_of_engine()


def test_a_driver_that_fails_is_quoted(driver: Driver) -> None:
    driver.lists(fails="NVIDIA-SMI has failed")
    with pytest.raises(FleetError, match=r"^nvidia-smi .* ended with code 9: NVIDIA-SMI has failed$"):
        visible_gpus()


def test_a_driver_that_says_something_else_is_not_guessed_at(driver: Driver) -> None:
    driver.lists(0, apps=())
    script = driver._directory / "nvidia-smi"
    script.write_text("#!/bin/sh\necho '0, GPU-a0, [N/A], 81559'\n")

    with pytest.raises(FleetError, match="lists GPUs in a form that is not known"):
        visible_gpus()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"trainer": [0, 0]}, "placement.trainer names GPU 0 twice"),
        ({"engines": [1, 1]}, "placement.engines names GPU 1 twice"),
        ({"trainer": [0], "engines": [0]}, "trainer and engines both name GPU 0: give each its own, or colocated"),
        ({"trainer": [0, 1]}, "placement.trainer names 2 GPUs, and trainer.workers is 1: each worker takes one"),
        ({"engines": [0, 1]}, "placement.engines names 2 GPUs, and scale.rollouts is 1: each engine takes one"),
        ({"trainer": [-1]}, "greater than or equal to 0"),
        ({"trainer": []}, "at least 1 item"),
    ],
)
def test_a_placement_that_cannot_be_is_refused_with_the_recipe(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe_of(**given)


def test_gpus_for_processes_that_take_none_are_refused() -> None:
    with pytest.raises(ValidationError, match=r'placement.trainer names GPUs, and trainer_device is "cpu"'):
        recipe_of(device="cpu", trainer=[0])
    with pytest.raises(ValidationError, match=r"placement.engines names GPUs, and with .* started by others: choose"):
        make_recipe(inference={"backend": "server", "urls": ["http://10.0.0.1:8000"]}, placement={"engines": [0]})


def test_a_run_may_go_on_elsewhere(tmp_path: Path) -> None:
    here, there = recipe_of(trainer=[0], engines=[1]), recipe_of()
    (tmp_path / "recipe.toml").write_text(to_toml(here))
    (tmp_path / "summary.json").touch()

    assert load_recipe(tmp_path / "recipe.toml") == here
    assert is_finished(tmp_path, there)
    assert recipe_hash(here) == recipe_hash(there) != recipe_hash(make_recipe(seed=9))
