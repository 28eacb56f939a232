"""The text below an observation: the admissible actions, and hints of the expert. Both are part of the record."""

import json
import random

from gymfleet_client.errors import ActionsUnavailable, ExpertUnavailable
from gymfleet_contracts.rollout import GroupRequest
from gymfleet_contracts.session import AdmissibleActions

from gymfleet_rollout.parts import Parts


class Beside:
    """Asks the environment for what a group's request wants to be shown, and puts it into words."""

    def __init__(self, parts: Parts, group: GroupRequest) -> None:
        self._parts = parts
        self._group = group
        self._timeout_s = group.limits.step_timeout_s

    async def text(self, session_id: str, index: int) -> str:
        """Return the text below the observation after `index` steps; empty if there is nothing to show."""
        listed = await self.admissible(session_id, index) if self._group.actions.shown else None
        lines = [] if listed is None or not listed.actions else [self._listing(listed)]
        if self._is_hinted(index) and (hint := await self._hint(session_id, index)):
            lines.append(f"Hint: {hint}")
        return "".join(f"\n{line}" for line in lines)

    async def admissible(self, session_id: str, index: int) -> AdmissibleActions | None:
        """Return the actions that are possible; None if the environment does not know."""
        try:
            return await self._parts.sessions.admissible_actions(session_id, index=index, timeout_s=self._timeout_s)
        except ActionsUnavailable:
            return None

    async def _hint(self, session_id: str, index: int) -> str | None:
        try:
            move = await self._parts.sessions.expert(session_id, index=index, timeout_s=self._timeout_s)
        except ExpertUnavailable:
            return None
        return move.action

    def _is_hinted(self, index: int) -> bool:
        """Draw by group and step: episodes of a group are baselines for each other, so they get the same hints."""
        probability = self._group.hint_probability
        return probability > 0 and random.Random(f"{self._group.group_id}/hint/{index}").random() < probability

    def _listing(self, listed: AdmissibleActions) -> str:
        most = self._group.actions.most
        shown, left = listed.actions[:most], len(listed.actions) - most
        more = f" and {left} more" if left > 0 else " and more" if not listed.complete else ""
        return f"Possible actions: {json.dumps(shown, ensure_ascii=False)}{more}"
