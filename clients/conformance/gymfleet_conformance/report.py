"""The findings of an examination: for people, for machines, and as JUnit XML."""

from enum import StrEnum
from typing import Final
from xml.etree import ElementTree as ET

from pydantic import BaseModel, ConfigDict

from gymfleet_conformance.check import Protocol, Severity

REPORT_VERSION: Final = 1


class Verdict(StrEnum):
    """The outcome of a check."""

    HOLDS = "holds"
    FAILS = "fails"
    NOT_APPLICABLE = "not applicable"


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class CheckResult(_Record):
    """One check on one environment."""

    id: str
    group: str
    severity: Severity
    promise: str
    verdict: Verdict
    seen: str = ""
    """What was seen if the promise does not hold, or the reason if it does not apply."""
    seconds: float


class Section(_Record):
    """All checks of one environment; `env` is empty if the protocol does not name it."""

    env: str
    results: tuple[CheckResult, ...]

    def count(self, verdict: Verdict, severity: Severity | None = None) -> int:
        """Count the results with this verdict."""
        return sum(one.verdict is verdict and severity in {None, one.severity} for one in self.results)


class Report(_Record):
    """One examination of one server."""

    report_version: int = REPORT_VERSION
    kit: str
    """The version of gymfleet."""
    url: str
    protocol: Protocol
    seconds: float
    sections: tuple[Section, ...]

    @property
    def conforms(self) -> bool:
        """Whether every `must` that applies holds."""
        return not any(section.count(Verdict.FAILS, Severity.MUST) for section in self.sections)

    def junit(self) -> bytes:
        """Return JUnit XML, one test suite per environment; a failed `should` is skipped, as it decides nothing."""
        root = ET.Element("testsuites", name="gymfleet conformance")
        for section in self.sections:
            suite = ET.SubElement(root, "testsuite", name=_xml(f"{self.protocol} {section.env}".strip()))
            decisive = section.count(Verdict.FAILS, Severity.MUST)
            skipped = section.count(Verdict.NOT_APPLICABLE) + section.count(Verdict.FAILS, Severity.SHOULD)
            suite.attrib |= {"tests": str(len(section.results)), "failures": str(decisive), "skipped": str(skipped)}
            for one in section.results:
                _add_case(suite, one)
        ET.indent(root)
        text: bytes = ET.tostring(root, encoding="utf-8", xml_declaration=True)
        return text + b"\n"


def _add_case(suite: ET.Element, one: CheckResult) -> None:
    case = ET.SubElement(suite, "testcase", classname=one.group, name=f"{one.id}: {one.promise}")
    case.attrib["time"] = f"{one.seconds:.3f}"
    if one.verdict is Verdict.HOLDS:
        return
    tag = "failure" if one.verdict is Verdict.FAILS and one.severity is Severity.MUST else "skipped"
    ET.SubElement(case, tag, message=_xml(one.seen))


def _xml(text: str) -> str:
    """Return text that XML 1.0 can hold, because it may contain a hostile server's words."""
    return "".join(char if char.isprintable() else " " for char in text)
