"""Write the snapshot of published tasks: `python -m tests.conformance.snapshot`."""

import json

from gymfleet_env_server.catalogue import ENVIRONMENTS, load_entry

from tests.conformance.test_environments import GAMES, SNAPSHOT, task_snapshot


def main() -> None:
    """Replace the snapshot by what the environments give now."""
    references = [*ENVIRONMENTS, *sorted({reference for reference, _ in GAMES.values()})]
    entries = [load_entry(name, {}) for name in references]
    content = {f"{entry.spec.name} {entry.spec.version}": task_snapshot(entry) for entry in entries}
    SNAPSHOT.write_text(json.dumps(content, indent=2) + "\n")


if __name__ == "__main__":
    main()
