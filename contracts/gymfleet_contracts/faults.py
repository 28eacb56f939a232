"""A one-line description of what is wrong with a document that a model refused."""

from pydantic import ValidationError


def faults(error: ValidationError, *, whole: str = "", within: str = "", most: int | None = None) -> str:
    """Describe where and why, as `key.path: message; ...`, without the input, which may be large or secret.

    `whole` names the place of a fault that concerns the document and not one key; `within` is the place of the document
    itself; `most` limits the number of faults that are described.
    """
    found = error.errors(include_input=False, include_url=False, include_context=False)[:most]
    parts = [([within] if within else []) + [str(part) for part in fault["loc"]] for fault in found]
    places = [".".join(place) or whole for place in parts]
    return "; ".join(
        f"{place}: {fault['msg']}" if place else fault["msg"] for place, fault in zip(places, found, strict=True)
    )
