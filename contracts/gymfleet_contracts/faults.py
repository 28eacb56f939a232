"""What is wrong with a document that a model refused, in one line."""

from pydantic import ValidationError


def faults(error: ValidationError, *, whole: str = "", most: int | None = None) -> str:
    """Say where and why, as `key.path: message; ...`, without the input, which may be large or secret.

    `whole` stands where a fault is of the document and not of one key; `most` is how many faults are told.
    """
    found = error.errors(include_input=False, include_url=False, include_context=False)[:most]
    places = [".".join(str(part) for part in fault["loc"]) or whole for fault in found]
    return "; ".join(
        f"{place}: {fault['msg']}" if place else fault["msg"] for place, fault in zip(places, found, strict=True)
    )
