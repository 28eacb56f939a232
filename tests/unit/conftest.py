"""What unit tests share: the plug-ins that the command line knows without asking a service for each."""

import shutil
from pathlib import Path

import pytest
from gymfleet_cli.plugins import descriptions
from gymfleet_kit.plugins import included

from tests.fixtures import preloaded

_ASKED_FOR = {
    "algorithm": "gymfleet_trainer.algorithms", "stage": "gymfleet_trainer.stages",
    "strategy": "gymfleet_rollout.strategies", "backend": "gymfleet_rollout.backends",
    "component": "gymfleet_reward.components", "format": "gymfleet_contracts.formats",
}  # fmt: skip


@pytest.fixture(scope="session")
def known_plugins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache in which all plug-ins that come with gymfleet are described.

    One start of each service, instead of one for each plug-in that a test is the first to name.
    """
    cache = tmp_path_factory.mktemp("known")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in preloaded.of_command_lines().items():
            patch.setenv(name, value)
        patch.setenv("XDG_CACHE_HOME", str(cache))
        descriptions((kind, name) for kind, package in _ASKED_FOR.items() for name in included(package))
    return cache


@pytest.fixture
def plugins_are_known(
    known_plugins: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Give the test a copy of that cache, which it may change."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(shutil.copytree(known_plugins, tmp_path_factory.mktemp("own") / "cache")))
