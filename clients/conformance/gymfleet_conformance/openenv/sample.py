"""The smallest action that fits an environment's own JSON schema."""

from typing import Any, Final

_MAX_DEPTH: Final = 8
_TEXT: Final = "look"


def smallest(schema: dict[str, Any]) -> dict[str, Any]:
    """Return an object with only the required properties."""
    value = _value(schema, schema, 0)
    return value if isinstance(value, dict) else {}


def _value(schema: Any, root: dict[str, Any], depth: int) -> Any:
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    if schema.get("enum"):
        return schema["enum"][0]
    if isinstance(schema.get("$ref"), str):
        return _value(_resolved(schema["$ref"], root), root, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return _value(schema[key][0], root, depth + 1)
    return _of_type(schema, root, depth)


def _of_type(schema: dict[str, Any], root: dict[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema else "string")
    match kind:
        case "object":
            properties = schema.get("properties", {})
            required = schema.get("required", [])
            return {name: _value(properties.get(name, {}), root, depth + 1) for name in required}
        case "array":
            return [_value(schema.get("items", {}), root, depth + 1) for _ in range(schema.get("minItems", 0))]
        case "integer" | "number":
            return max(schema.get("minimum", 0), schema.get("exclusiveMinimum", -1) + 1)
        case "boolean":
            return False
        case "null":
            return None
        case _:
            return _TEXT.ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", len(_TEXT) + 1000)]


def _resolved(reference: str, root: dict[str, Any]) -> Any:
    found: Any = root
    for part in reference.removeprefix("#/").split("/"):
        found = found.get(part, {}) if isinstance(found, dict) else {}
    return found
