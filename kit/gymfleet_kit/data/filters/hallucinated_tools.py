"""Replies that call a tool that is not offered."""

from typing import Annotated, Literal

from gymfleet_contracts.conversation import Record
from pydantic import Field

from gymfleet_kit.data.filter import Filter, FilterOptions
from gymfleet_kit.data.tools import tool_use


class HallucinatedToolsOptions(FilterOptions):
    """The limit on hallucinated calls."""

    max_rate: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The largest share of a record's calls whose tool is not offered."""
    unknown: Literal["keep", "drop"] = "keep"
    """What to do with a record that calls tools if no list of offered tools is found in it."""


class HallucinatedTools(Filter[HallucinatedToolsOptions]):
    """Leave out records that call tools not offered before the first reply (Agent-FLAN, arXiv:2403.12881)."""

    Options = HallucinatedToolsOptions

    def keep(self, record: Record) -> bool:
        """Return whether few enough calls are hallucinated; a record without calls is kept."""
        use = tool_use([record])
        if use.num_unknown:
            return self.options.unknown == "keep"
        return use.rate <= self.options.max_rate
