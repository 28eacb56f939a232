"""Settings of the dataset environment."""

from pathlib import Path
from typing import Annotated, Final, Self

from pydantic import Field, JsonValue, model_validator

from gymfleet_envs.environment import Options

MAX_TURNS: Final = 32
Key = Annotated[str, Field(max_length=256)]
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]


class DatasetOptions(Options):
    """Which rows to play, how to read them, and how to score them."""

    path: Path | None = None
    """A .parquet, .jsonl or .json file, or a directory with files for train, validation and test."""
    hub: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+/[A-Za-z0-9._-]+)?$")] = ""
    """The id of a data set on the Hugging Face hub, read from the hub's cache (`HF_HOME`)."""
    hub_revision: str = "main"
    hub_folder: Annotated[str, Field(pattern=r"^([A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*)?$", max_length=256)] = ""
    """The folder of one configuration of the data set, as `main` of `openai/gsm8k`; if empty, the top and `data/`."""
    hub_download: bool = False
    """Fetch what the cache lacks. Without this option nothing is requested over the network."""
    prompt_key: Key = "prompt"
    """The key of the prompt: messages, or one text. A dot leads into a table, as in `reward_model.ground_truth`."""
    data_source_key: Key = "data_source"
    ground_truth_key: Key = "reward_model.ground_truth"
    scorer_key: Key = "reward_model.scorer"
    """The key of a scorer's name, for rows that name their own scorer; their data source then needs none."""
    extra_info_key: Key = "extra_info"
    """The key of further information for the reward service; if empty, there is none."""
    solution_key: Key = ""
    """The key of a complete right reply, which the expert gives on the train split; if empty, there is no expert."""
    data_source: str = ""
    """The data source of rows that name none."""
    scorers: dict[str, str | dict[str, JsonValue]] = Field(default_factory=dict)
    """The scorer of each data source: a name, or a table with `use` and the scorer's options."""
    validation_share: Share = 0.05
    """Share of the train rows, by the hash of their prompts, used for validation if there is no file for it."""
    test_share: Share = 0.05
    """Share of the train rows, by the hash of their prompts, used for testing if there is no file for it."""
    max_prompt_chars: Annotated[int, Field(ge=1, le=1_000_000)] = 32_768
    """A longer prompt is refused, naming its row: cut at `GYMFLEET_ENV_MAX_OBSERVATION_CHARS`, it would be no task."""
    instructions: Annotated[str, Field(min_length=1)] = "Solve the task."
    """Put before every prompt."""
    tools: tuple[str, ...] = ()
    """Tools that a reply may call before it answers: names, or `package.module:Class`."""
    max_turns: Annotated[int, Field(ge=1, le=MAX_TURNS)] = 1
    """Limit on the turns of an episode: tool calls and the answer together."""

    @model_validator(mode="after")
    def fits_together(self) -> Self:
        """Require no more than one source of rows, and a turn for a tool's answer."""
        if self.path is not None and self.hub:
            raise ValueError("give path or hub, not both")
        if self.hub_folder and not self.hub:
            raise ValueError("hub_folder is a folder of the data set that hub names: give hub, too")
        if ".." in self.hub_folder.split("/"):
            raise ValueError("hub_folder lies in the data set: .. does not")
        if self.validation_share + self.test_share >= 1:
            raise ValueError("validation_share and test_share leave nothing to train on")
        if self.tools and self.max_turns < 2:
            raise ValueError("a tool needs a turn before the answer's: set max_turns to 2 or more")
        if self.max_turns > 1 and not self.tools:
            raise ValueError("without tools the first reply is the answer: max_turns is 1")
        return self
