"""Settings of the dataset environment."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, JsonValue, model_validator

from gymfleet_envs.environment import Options

MAX_TURNS: Final = 32
Key = Annotated[str, Field(max_length=256)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class DatasetOptions(Options):
    """Which rows, how they are read, and how they are scored."""

    path: Path | None = None
    """A .parquet, .jsonl or .json file, or a directory with files for train, validation and test."""
    hub: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)?$")] = ""
    """The id of a data set on the Hugging Face hub, as it lies in the hub's cache (`HF_HOME`)."""
    hub_revision: str = "main"
    hub_download: bool = False
    """Fetch what the cache lacks. Without it nothing is asked over the network."""
    prompt_key: Key = "prompt"
    """Messages, or one text. A dot leads into a table, as in `reward_model.ground_truth`."""
    data_source_key: Key = "data_source"
    ground_truth_key: Key = "reward_model.ground_truth"
    scorer_key: Key = "reward_model.scorer"
    """A scorer's name, for rows that say themselves how they are scored; their data source needs none then."""
    extra_info_key: Key = "extra_info"
    """What the reward service is told besides; empty: nothing."""
    solution_key: Key = ""
    """A whole reply that is right, which the expert gives on the train split; empty: there is no expert."""
    data_source: str = ""
    """The data source of rows that name none."""
    scorers: dict[str, str | dict[str, JsonValue]] = Field(default_factory=dict)
    """Data source to scorer: a name, or a table with `use` and the scorer's options."""
    validation_share: Share = 0.05
    """Of the train rows, by the hash of their prompts, where there is no file for validation."""
    test_share: Share = 0.05
    """Likewise, where there is no file for testing."""
    max_prompt_chars: Annotated[int, Field(ge=1, le=1_000_000)] = 32_768
    """A longer prompt is refused by name; what a server's `GYMFLEET_ENV_MAX_OBSERVATION_CHARS` cut would be no task."""
    instructions: Annotated[str, Field(min_length=1)] = "Solve the task."
    """Put before every prompt."""
    tools: tuple[str, ...] = ()
    """What a reply may call before it answers: names, or `package.module:Class`."""
    max_turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 1
    """Calls and answer together."""

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """One source of rows, and a turn for a tool's answer."""
        if self.path is not None and self.hub:
            raise ValueError("give path or hub, not both")
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share leave nothing to train on")
        if self.tools and self.max_turns < 2:
            raise ValueError("a tool needs a turn before the answer's: set max_turns to 2 or more")
        if self.max_turns > 1 and not self.tools:
            raise ValueError("without tools the first reply is the answer: max_turns is 1")
        return self
