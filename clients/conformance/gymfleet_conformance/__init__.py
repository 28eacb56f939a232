"""Checks of an environment server's promises: those of the session API, OpenEnv and AgentGym."""

from gymfleet_conformance.catalogue import checks_of, every_check
from gymfleet_conformance.check import Check, Protocol, Severity
from gymfleet_conformance.detect import NotAServer, find_protocol
from gymfleet_conformance.report import CheckResult, Report, Section, Verdict
from gymfleet_conformance.run import Options, examine

__all__ = [
    "Check",
    "CheckResult",
    "NotAServer",
    "Options",
    "Protocol",
    "Report",
    "Section",
    "Severity",
    "Verdict",
    "checks_of",
    "every_check",
    "examine",
    "find_protocol",
]
