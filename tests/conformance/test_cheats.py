"""No environment pays for what is not the task: a cheat scores 0, or the floor that the environment states."""

import shutil

import pytest
from gymfleet_env_server.catalogue import ENVIRONMENTS, Entry, find_environment, load_entry

from tests.conformance.cheats import POLICIES, Cheat, mean_score, own

TASKS = 12
"""Of each level; their mean score is held against the floor."""


def known(name: str) -> dict[str, Cheat]:
    return {cheat.name: cheat for cheat in (*POLICIES, *own(name).CHEATS)}


@pytest.fixture(scope="module", params=ENVIRONMENTS)
def entry(request: pytest.FixtureRequest) -> Entry:
    name = str(request.param)
    if absent := [program for program in find_environment(name).programs() if shutil.which(program) is None]:
        pytest.skip(f"{name} needs {absent[0]}, see scripts/system.sh")
    return load_entry(name, {})


def test_no_cheat_scores_more_than_its_floor(entry: Entry) -> None:
    above = []
    for name, cheat in known(entry.spec.name).items():
        for level in entry.spec.levels:
            tasks = [entry.tasks.by_index("test", level, index) for index in range(TASKS)]
            floor = entry.kind.floors.get(name, 0.0)
            if (score := mean_score(entry, cheat, tasks)) > floor:
                above.append(f"{name} scores {score:.3f} on {level}, where {floor:.3f} is stated")

    assert not above, "\n".join(above)


def test_floors_are_those_of_known_cheats(entry: Entry) -> None:
    assert set(entry.kind.floors) <= set(known(entry.spec.name))
    assert all(0 < floor < 1 for floor in entry.kind.floors.values())
