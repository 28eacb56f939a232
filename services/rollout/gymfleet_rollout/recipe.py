"""Settings that a recipe gives where the environment leaves them open."""

from pathlib import Path
from typing import Any

from gymfleet_contracts.recipe import Recipe, initial_model
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from gymfleet_rollout.settings import RolloutSettings


def settings_for(recipe: Recipe, run_dir: Path) -> type[RolloutSettings]:
    """`RolloutSettings` whose defaults are the recipe's: its `[inference]`, its seed, and its model's place."""
    given = _given(recipe, run_dir)

    class RecipeSettings(RolloutSettings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *given_first: PydanticBaseSettingsSource, **more: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """What comes first wins: the recipe is asked last."""
            sources = super().settings_customise_sources(settings_cls, *given_first, **more)
            return (*sources, InitSettingsSource(settings_cls, given))

    return RecipeSettings


def _given(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    inference = recipe.inference.model_dump(mode="json")
    # vLLM's servers are named, and left out, together with the backend.
    urls = inference.pop("urls")
    servers = {"server_urls": urls} if urls else {}
    return {**inference, **servers, "seed": recipe.seed, "model": initial_model(recipe, run_dir)}
