"""tau-bench's airline as an environment."""

from collections.abc import Mapping
from typing import ClassVar, Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.tau.base import TauEnvironment, instructions
from gymfleet_envs.tau.benchmark import Domain
from gymfleet_envs.tau.task import TauTask
from gymfleet_envs.tau.tools import ToolFunction
from gymfleet_envs.tau_airline.generate import generated_tasks
from gymfleet_envs.tau_airline.policy import POLICY
from gymfleet_envs.tau_airline.records import Flight, Reservation, User
from gymfleet_envs.tau_airline.schemas import TOOLS
from gymfleet_envs.tau_airline.tools import FUNCTIONS


class TauAirline(TauEnvironment):
    """Book, change and cancel flights."""

    name: ClassVar[str] = "tau_airline"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Serve a customer of an airline with tools, by its policy (tau-bench, airline)"
    instructions: ClassVar[str] = instructions(POLICY, TOOLS)
    licence: ClassVar[str] = "Apache-2.0; benchmark records, tasks and policy: tau-bench (MIT)"
    tools: ClassVar[tuple[Tool, ...]] = TOOLS

    domain: ClassVar[Domain] = Domain(
        "tau_airline",
        "airline",
        {"flights": Flight, "users": User, "reservations": Reservation},
        frozenset(FUNCTIONS) | {"respond"},
    )
    functions: ClassVar[Mapping[str, ToolFunction]] = FUNCTIONS
    changing: ClassVar[frozenset[str]] = frozenset(
        {
            "book_reservation", "cancel_reservation", "send_certificate", "update_reservation_baggages",
            "update_reservation_flights", "update_reservation_passengers",
        }
    )  # fmt: skip
    identity_question: ClassVar[str] = "Could you tell me your user id?"

    @classmethod
    def generated(cls) -> TaskSource[TauTask]:
        """Customers of small airlines."""
        return generated_tasks()


ENVIRONMENT: Final = TauAirline
