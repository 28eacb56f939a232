"""The fields that the shop's tools rely on; records may have more."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class _Name(_Part):
    first_name: str
    last_name: str


class _Address(_Part):
    zip: str


class _Method(_Part):
    source: str
    balance: float | None = None


class User(_Part):
    """A customer's profile."""

    name: _Name
    address: _Address
    email: str
    payment_methods: dict[str, _Method]
    orders: list[str]


class _Item(_Part):
    product_id: str
    item_id: str
    price: float


class _Payment(_Part):
    transaction_type: Literal["payment", "refund"]
    amount: float
    payment_method_id: str


class Order(_Part):
    """Everything bought at one time."""

    order_id: str
    user_id: str
    items: list[_Item]
    status: str
    payment_history: Annotated[list[_Payment], Field(min_length=1)]


class _Variant(_Part):
    available: bool
    price: float
    options: dict[str, str]


class Product(_Part):
    """A kind of product and its variants."""

    name: str
    product_id: str
    variants: dict[str, _Variant]
