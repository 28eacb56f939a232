"""Episodes as HTML. Their texts come from models and environments: everything is escaped."""

from html import escape
from typing import Final

from gymfleet_contracts.trajectory import ScoredTrajectory, Turn

from gymfleet_cli.report.data import Pair

_MAX_TURNS: Final = 30
_MAX_CHARS: Final = 2000


def pairs_section(pairs: tuple[Pair, ...]) -> str:
    """Render each task with its two episodes side by side."""
    if not pairs:
        return '<p class="note">No episodes of the same task were recorded before and after.</p>'
    return "".join(_pair(pair, is_open=number == 0) for number, pair in enumerate(pairs))


def _pair(pair: Pair, *, is_open: bool) -> str:
    task = pair.before.trajectory.task
    marks = f"{_mark(pair.before)} → {_mark(pair.after)}"
    return (
        f"<details{' open' if is_open else ''}><summary>Task {escape(task.task_id)} <span>{marks}</span></summary>"
        f'<div class="pair">{_episode("Before", pair.before)}{_episode("After", pair.after)}</div></details>'
    )


def _mark(scored: ScoredTrajectory) -> str:
    return '<b class="good">solved</b>' if scored.trajectory.success else '<b class="bad">not solved</b>'


def _episode(title: str, scored: ScoredTrajectory) -> str:
    episode = scored.trajectory
    turns = "".join(_turn(number, turn) for number, turn in enumerate(episode.turns[:_MAX_TURNS], start=1))
    if len(episode.turns) > _MAX_TURNS:
        turns += f'<li class="note">{len(episode.turns) - _MAX_TURNS} more turns</li>'
    reward = "" if scored.reward is None else f" · reward {scored.reward.total:.3g}"
    facts = f"{len(episode.turns)} turns · {escape(episode.finish_reason.value)}{reward}"
    end = _quote("observation", episode.final_observation) if episode.final_observation else ""
    return f'<article><h3>{title}: {_mark(scored)}</h3><p class="note">{facts}</p><ol>{turns}</ol>{end}</article>'


def _turn(number: int, turn: Turn) -> str:
    faults = []
    if not turn.format_valid:
        faults.append("not in the format")
    if not turn.action_valid:
        faults.append("action not understood")
    note = f'<span class="fault">{"; ".join(faults)}</span>' if faults else ""
    return (
        f'<li><span class="number">turn {number}</span>{note}'
        f"{_quote('observation', turn.observation)}{_quote('reply', turn.text or '(empty reply)')}</li>"
    )


def _quote(css: str, text: str) -> str:
    cut = text.strip()
    if len(cut) > _MAX_CHARS:
        cut = f"{cut[:_MAX_CHARS]} … ({len(cut) - _MAX_CHARS} characters more)"
    visible = "".join(char if char in "\n\t" or char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in cut)
    return f'<pre class="{css}">{escape(visible)}</pre>'
