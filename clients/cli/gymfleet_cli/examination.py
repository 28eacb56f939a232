"""The work of `gymfleet conformance URL`: test a server's promises, then show and write the results."""

import asyncio
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from fnmatch import fnmatchcase
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import httpx
from gymfleet_conformance.catalogue import checks_of, every_check
from gymfleet_conformance.check import Check, Protocol, Severity
from gymfleet_conformance.detect import NotAServer, find_protocol, find_targets
from gymfleet_conformance.report import CheckResult, Report, Section, Verdict
from gymfleet_conformance.run import Options, examine
from gymfleet_conformance.server_under_test import ServerUnderTest
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from gymfleet_cli.console import UsageProblem, err, out, plain

T = TypeVar("T")

AUTO: Final = "auto"
_CANCEL_AGAIN_S: Final = 0.2
_STYLES: Final = {Verdict.HOLDS: "green", Verdict.FAILS: "bold red", Verdict.NOT_APPLICABLE: "dim"}


def examine_server(
    url: str | None,
    *,
    protocol: str,
    env: Sequence[str],
    check: Sequence[str],
    api_key: str | None,
    json_file: Path | None,
    junit_file: Path | None,
    failures_only: bool,
    list_checks: bool,
    markdown: bool,
) -> bool:
    """Run the chosen checks, show and write the report; return whether every `must` holds. Raises `UsageProblem`."""
    spoken = _protocol(protocol)
    if list_checks:
        _list(_chosen(spoken, check), markdown=markdown)
        return True
    if url is None:
        raise UsageProblem("give the URL of a server, as in: gymfleet conformance http://127.0.0.1:8110")
    _chosen(spoken, check)
    report = asyncio.run(_interruptible(_examined(url, spoken, env, check, api_key)))
    for section in report.sections:
        _show(report, section, failures_only=failures_only)
    for path, content in ((json_file, report.model_dump_json(indent=2).encode() + b"\n"), (junit_file, report.junit())):
        if path is not None:
            _write(path, content)
    return report.conforms


async def _interruptible(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. Ctrl-C cancels it until it ends: in Python 3.11 a check in the middle of a wait can swallow one."""
    loop = asyncio.get_running_loop()
    task = asyncio.ensure_future(work)
    interrupted = False

    def interrupt() -> None:
        nonlocal interrupted
        interrupted = True
        task.cancel()
        loop.call_later(_CANCEL_AGAIN_S, lambda: None if task.done() else interrupt())

    loop.add_signal_handler(signal.SIGINT, interrupt)
    try:
        result = await task
    except asyncio.CancelledError:
        if interrupted:
            raise KeyboardInterrupt from None
        raise
    finally:
        loop.remove_signal_handler(signal.SIGINT)
    if interrupted:
        raise KeyboardInterrupt
    return result


def _protocol(name: str) -> Protocol | None:
    if name == AUTO:
        return None
    try:
        return Protocol(name)
    except ValueError:
        raise UsageProblem(f"--protocol {name!r}: give one of {', '.join(Protocol)}, {AUTO}") from None


def _chosen(protocol: Protocol | None, patterns: Sequence[str]) -> list[Check[Any]]:
    """Return the checks that the patterns select. Raises `UsageProblem` for a pattern that matches none."""
    checks = every_check() if protocol is None else checks_of(protocol)
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for check in checks for name in (check.id, check.group)):
            raise UsageProblem(f"--check {pattern!r} matches no check; `gymfleet conformance --list` shows them all")
    return [check for check in checks if Options(patterns=patterns).wants(check)]


async def _examined(
    url: str, protocol: Protocol | None, envs: Sequence[str], patterns: Sequence[str], api_key: str | None
) -> Report:
    began = time.monotonic()
    try:
        server = ServerUnderTest.at(url, api_key)
    except ValueError as error:
        raise UsageProblem(str(error)) from None
    async with server:
        try:
            spoken = protocol or await find_protocol(server)
            targets = await find_targets(server, spoken, envs)
        except NotAServer as error:
            raise UsageProblem(str(error)) from None
        except (httpx.HTTPError, OSError) as error:
            raise UsageProblem(f"{server.url} cannot be reached: {error or type(error).__name__}") from None
        checks = _wanted(spoken, patterns)
        sections = []
        with _Bar(len(checks) * len(targets)) as bar:
            for env, target in targets:
                told = bar.telling(env)
                sections.append(await examine(env, checks, target, Options(patterns=patterns, told=told)))
    return Report(
        kit=installed_version("gymfleet"),
        url=server.url,
        protocol=spoken,
        seconds=round(time.monotonic() - began, 1),
        sections=tuple(sections),
    )


def _wanted(protocol: Protocol, patterns: Sequence[str]) -> list[Check[Any]]:
    checks = [check for check in checks_of(protocol) if Options(patterns=patterns).wants(check)]
    if not checks:
        raise UsageProblem(f"none of the {protocol} checks matches --check {', '.join(patterns)}")
    return checks


class _Bar:
    """The progress of the run: a bar on a terminal, nothing elsewhere."""

    def __init__(self, total: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=err, transient=True, disable=not err.is_terminal)
        self._task = self._progress.add_task("checks", total=total)

    def telling(self, env: str) -> Callable[[CheckResult], None]:
        """Return a function that counts a result."""

        def told(result: CheckResult) -> None:
            name = " ".join(part for part in (env, result.id) if part)
            self._progress.update(self._task, advance=1, description=plain(name).plain)

        return told

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()


def _show(report: Report, section: Section, *, failures_only: bool) -> None:
    table = Table()
    for column in ("check", "promise", "verdict", "seen"):
        table.add_column(column, overflow="fold")
    for one in section.results:
        if failures_only and one.verdict is not Verdict.FAILS:
            continue
        verdict = f"{one.verdict} (should)" if _minor(one) else str(one.verdict)
        style = "yellow" if _minor(one) else _STYLES[one.verdict]
        table.add_row(plain(one.id), plain(one.promise), Text(verdict, style=style), plain(one.seen))
    if table.row_count:
        out.print(table)
    out.print(plain(_summary(report, section)), soft_wrap=True)


def _minor(one: CheckResult) -> bool:
    return one.verdict is Verdict.FAILS and one.severity is Severity.SHOULD


def _summary(report: Report, section: Section) -> str:
    name = " ".join(part for part in (report.protocol.value, section.env) if part)
    must, should = (section.count(Verdict.FAILS, severity) for severity in (Severity.MUST, Severity.SHOULD))
    return (
        f"{name}: {section.count(Verdict.HOLDS)} of {len(section.results)} hold, "
        f"{must} must and {should} should fail, {section.count(Verdict.NOT_APPLICABLE)} not applicable"
    )


def _list(checks: Sequence[Check[Any]], *, markdown: bool) -> None:
    if markdown:
        out.print(plain(listing(checks)), soft_wrap=True)
        return
    table = Table()
    for column in ("check", "protocol", "severity", "applies", "promise"):
        table.add_column(column, overflow="fold")
    for check in checks:
        table.add_row(*map(plain, (check.id, check.protocol, check.severity, ", ".join(check.needs), check.promise)))
    out.print(table)


def listing(checks: Sequence[Check[Any]]) -> str:
    """Return the checks as Markdown, with a table for each protocol."""
    lines: list[str] = []
    for protocol in Protocol:
        own = [check for check in checks if check.protocol is protocol]
        if not own:
            continue
        heading = f"### {protocol}: {len(own)} checks"
        lines += [*([""] if lines else []), heading, "", "| check | severity | needs | promise |", "|---|---|---|---|"]
        lines += [f"| `{one.id}` | {one.severity} | {', '.join(one.needs)} | {one.promise} |" for one in own]
    return "\n".join(lines)


def _write(path: Path, content: bytes) -> None:
    try:
        path.write_bytes(content)
    except OSError as error:
        raise UsageProblem(f"the report cannot be written to {path}: {error.strerror or error}") from None
