"""One task of sheet."""

import json
from dataclasses import dataclass

from gymfleet_envs.agentgym_tools.base import Move
from gymfleet_envs.sheet.scoring import Rule
from gymfleet_envs.sheet.tools import Workbook


@dataclass(frozen=True, slots=True)
class SheetTask:
    """A workbook, a goal about one of its sheets, and the table that this sheet should show at the end."""

    goal: str
    workbook: Workbook
    sheet: str
    gold: str
    """JSON: a list of rows of texts."""
    rule: Rule
    plan: tuple[Move, ...]

    @property
    def table(self) -> list[list[str]]:
        """The gold texts."""
        rows: list[list[str]] = json.loads(self.gold)
        return rows
