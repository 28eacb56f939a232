"""Settings that a recipe provides where the environment does not set them."""

from pathlib import Path
from typing import Any

from gymfleet_contracts.recipe import Recipe, initial_model
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource

from gymfleet_rollout.settings import RolloutSettings


def settings_for(recipe: Recipe, run_dir: Path) -> type[RolloutSettings]:
    """Return `RolloutSettings` with the recipe's defaults: `[inference]`, seed, the model's place, and plug-ins."""
    given = _given(recipe, run_dir)

    class RecipeSettings(RolloutSettings):
        @classmethod
        def settings_customise_sources(
            cls, settings_cls: type[BaseSettings], *given_first: PydanticBaseSettingsSource, **more: Any
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            """Put the recipe last, because the first source takes precedence."""
            sources = super().settings_customise_sources(settings_cls, *given_first, **more)
            return (*sources, _RecipeSource(settings_cls, given))

    return RecipeSettings


class _RecipeSource(InitSettingsSource):
    def __call__(self) -> dict[str, Any]:
        """Leave out the options of the recipe's backend where the environment names another one."""
        given = super().__call__()
        if self.current_state.get("backend", given["backend"]) != given["backend"]:
            del given["backend_options"]
        return given


def _given(recipe: Recipe, run_dir: Path) -> dict[str, Any]:
    lora = recipe.model.lora
    return {
        **recipe.inference.sizes.model_dump(mode="json"),
        "backend": recipe.inference.backend,
        "backend_options": recipe.inference.options,
        "seed": recipe.seed,
        "sleep_mode": recipe.placement.colocated,
        **({} if lora is None else {"max_lora_rank": lora.rank, "max_loras": lora.max_loras}),
        "model": initial_model(recipe, run_dir),
        "plugins": sorted(
            {one.use for one in recipe.formats().values()} | {one.use for one in recipe.strategies().values()}
        ),
    }
