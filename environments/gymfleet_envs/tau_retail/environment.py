"""tau-bench's shop as an environment."""

from collections.abc import Mapping
from typing import ClassVar, Final

from gymfleet_contracts.session import Tool

from gymfleet_envs.tasks import TaskSource
from gymfleet_envs.tau.base import TauEnvironment, instructions
from gymfleet_envs.tau.benchmark import Domain
from gymfleet_envs.tau.task import TauTask
from gymfleet_envs.tau.tools import ToolFunction
from gymfleet_envs.tau_retail.generate import generated_tasks
from gymfleet_envs.tau_retail.policy import POLICY
from gymfleet_envs.tau_retail.records import Order, Product, User
from gymfleet_envs.tau_retail.schemas import TOOLS
from gymfleet_envs.tau_retail.tools import FUNCTIONS


class TauRetail(TauEnvironment):
    """Cancel, modify, return and exchange orders."""

    name: ClassVar[str] = "tau_retail"
    version: ClassVar[str] = "1.0.0"
    summary: ClassVar[str] = "Serve a customer of a shop with tools, by its policy (tau-bench, retail)"
    instructions: ClassVar[str] = instructions(POLICY, TOOLS)
    licence: ClassVar[str] = "Apache-2.0; benchmark records, tasks and policy: tau-bench (MIT)"
    tools: ClassVar[tuple[Tool, ...]] = TOOLS

    domain: ClassVar[Domain] = Domain(
        "tau_retail",
        "retail",
        {"products": Product, "users": User, "orders": Order},
        frozenset(FUNCTIONS) | {"respond"},
    )
    functions: ClassVar[Mapping[str, ToolFunction]] = FUNCTIONS
    changing: ClassVar[frozenset[str]] = frozenset(
        {
            "cancel_pending_order", "exchange_delivered_order_items", "modify_pending_order_address",
            "modify_pending_order_items", "modify_pending_order_payment", "modify_user_address",
            "return_delivered_order_items",
        }
    )  # fmt: skip
    identity_question: ClassVar[str] = "Could you tell me your email, or your name and zip code?"

    @classmethod
    def generated(cls) -> TaskSource[TauTask]:
        """Customers of small shops."""
        return generated_tasks()


ENVIRONMENT: Final = TauRetail
