"""Checks of an environment server's promises: the session API's, OpenEnv's and AgentGym's."""

from gymfleet_client.conformance.catalogue import checks_of, every_check
from gymfleet_client.conformance.check import Check, Protocol, Severity
from gymfleet_client.conformance.detect import NotAServer, find_protocol
from gymfleet_client.conformance.report import CheckResult, Report, Section, Verdict
from gymfleet_client.conformance.run import Options, examine

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
