"""The runner of checks: each has its own target and deadline, and several run at a time."""

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

import httpx
import websockets
from gymfleet_contracts.faults import faults
from pydantic import ValidationError

from gymfleet_conformance.check import Check
from gymfleet_conformance.report import CheckResult, Section, Verdict
from gymfleet_conformance.server_under_test import Failed, NotApplicable, Target, excerpt

CONCURRENCY: Final = 8
RELEASE_S: Final = 5.0
MAX_SILENT: Final = 2 * CONCURRENCY
_SEEN_CHARS: Final = 400
Told = Callable[[CheckResult], None]


@dataclass(frozen=True, slots=True)
class Options:
    """The checks to carry out, and the receiver of each result."""

    patterns: Sequence[str] = ()
    """Globs over ids; a group's name stands for all of its checks. Empty means all checks."""
    concurrency: int = CONCURRENCY
    told: Told = lambda _: None

    def wants(self, check: Check[Any]) -> bool:
        """Return whether a pattern matches the check."""
        names = (check.id, check.group)
        return not self.patterns or any(fnmatchcase(name, p) for p in self.patterns for name in names)


async def examine(
    env: str, checks: Sequence[Check[Any]], target: Callable[[], Target], options: Options | None = None
) -> Section:
    """Carry out `checks`, each on a target of its own. The results are in the order of the checks."""
    chosen = options or Options()
    slots = asyncio.Semaphore(chosen.concurrency)
    silent = _Silence()

    async def one(check: Check[Any]) -> CheckResult:
        async with slots:
            result = await _carried_out(check, target(), silent)
        chosen.told(result)
        return result

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(check)) for check in checks if chosen.wants(check)]
    return Section(env=env, results=tuple(task.result() for task in tasks))


class _Silence:
    """Counts consecutive checks that exceeded their deadline, so that a dead server is not asked a hundred times."""

    def __init__(self) -> None:
        self.row = 0

    @property
    def complete(self) -> bool:
        return self.row >= MAX_SILENT


async def _carried_out(check: Check[Any], target: Target, silence: _Silence) -> CheckResult:
    began = time.perf_counter()
    verdict, seen = Verdict.FAILS, f"not tried: the last {MAX_SILENT} checks got no answer"
    if not silence.complete:
        verdict, seen = await _verdict(check, target, silence)
    return CheckResult(
        id=check.id,
        group=check.group,
        severity=check.severity,
        promise=check.promise,
        verdict=verdict,
        seen=excerpt(seen, _SEEN_CHARS),
        seconds=round(time.perf_counter() - began, 3),
    )


async def _verdict(check: Check[Any], target: Target, silence: _Silence) -> tuple[Verdict, str]:
    for need in check.needs:
        if (reason := target.lacks(need)) is not None:
            return Verdict.NOT_APPLICABLE, reason
    try:
        async with asyncio.timeout(check.deadline_s):
            await check.run(target)
    except NotApplicable as error:
        silence.row = 0
        return Verdict.NOT_APPLICABLE, str(error)
    except (TimeoutError, httpx.TimeoutException):
        silence.row += 1
        return Verdict.FAILS, f"no answer in time; the check has {check.deadline_s:g} s"
    except Exception as error:  # noqa: BLE001 - whatever a strange server provokes is a verdict, not the end of the run
        silence.row = 0
        return Verdict.FAILS, _told(error)
    finally:
        with suppress(Exception):
            async with asyncio.timeout(RELEASE_S):
                await target.release()
    silence.row = 0
    return Verdict.HOLDS, ""


def _told(error: Exception) -> str:
    """Return a description of what was seen, from the exception."""
    match error:
        case Failed():
            return str(error)
        case ValidationError():
            return f"the answer is no {error.title}: {faults(error, most=1)}"
        case httpx.HTTPError() | websockets.WebSocketException() | OSError():
            return f"the connection broke: {type(error).__name__}: {error}"
    return f"the answer could not be read: {type(error).__name__}: {error}"
