"""A pocket calculator."""

from decimal import Context, Decimal
from typing import ClassVar, Final

from gymfleet_envs.dataset.arithmetic import ArithmeticFault, evaluate
from gymfleet_envs.dataset.tool import RowTool, ToolFault

_DIGITS: Final = Context(prec=12)


class Calculator(RowTool):
    """Evaluates arithmetic exactly; shows twelve digits of a value that is not a whole number."""

    name: ClassVar[str] = "calculator"
    description: ClassVar[str] = "Evaluate numbers, + - * / ^ and parentheses."
    argument: ClassVar[str] = "expression"

    def call(self, argument: str) -> str:
        """See `RowTool`."""
        try:
            value = evaluate(argument, powers=True).value
        except ArithmeticFault as error:
            raise ToolFault(str(error)) from None
        if value.denominator == 1:
            return str(value.numerator)
        return str(_DIGITS.divide(Decimal(value.numerator), Decimal(value.denominator)))
