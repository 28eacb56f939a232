"""No environment pays for what is not the task: a cheat scores 0, or the floor that the environment states.

What one environment alone invites stands in `cheating/NAME.py`, which every environment has: `CHEATS`, and, if it asks
models, `answer`, who plays them.
"""

import importlib
import shutil
from pathlib import Path
from typing import Any, Final

import pytest
from gymfleet_env_server.catalogue import ENVIRONMENTS, find_environment, load_entry
from gymfleet_env_server.cheat_rates import MOST_TASKS, TASKS, faults

FOLDER: Final = Path(__file__).with_name("cheating")
FEW: Final = {
    "alfworld": (4, 40), "babyai": (12, 100), "card_game": (12, 40), "kg": (12, 100), "lateral_thinking": (12, 100),
    "os": (3, 30), "sciworld": (2, 6), "textarena": (12, 100), "textworld": (12, 30),
}  # fmt: skip
"""Tasks of each level where steps are slow: where nothing is stated, and at most where something is."""


def own(name: str) -> Any:
    """Return the module of what one environment invites."""
    if not (FOLDER / f"{name}.py").is_file():
        pytest.fail(f"tests/conformance/cheating/{name}.py is missing: write what an agent would do in {name} that "
                    "wants the reward and not the task", pytrace=False)  # fmt: skip
    return importlib.import_module(f"tests.conformance.cheating.{name}")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_environment_has_cheats_of_its_own(name: str) -> None:
    names = [cheat.name for cheat in own(name).CHEATS]

    assert names, f"tests/conformance/cheating/{name}.py holds no cheat"
    assert len(set(names)) == len(names)


def test_an_environment_without_them_is_told_what_to_write() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"^tests/conformance/cheating/nowhere\.py is missing: write what"):
        own("nowhere")


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_no_cheat_is_paid_more_than_its_floor(name: str) -> None:
    cheats = own(name)
    if absent := [program for program in find_environment(name).programs() if shutil.which(program) is None]:
        pytest.skip(f"{name} needs {absent[0]}, see scripts/system.sh")

    num_tasks, most_tasks = FEW.get(name, (TASKS, MOST_TASKS))
    answer = getattr(cheats, "answer", None)

    found = faults(load_entry(name, {}), cheats.CHEATS, answer=answer, num_tasks=num_tasks, most_tasks=most_tasks)

    assert not found, "\n".join(found)
