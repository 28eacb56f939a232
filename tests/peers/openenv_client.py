"""A program for the peers' Python: OpenEnv's own client does what it is told, line by line.

`python openenv_client.py BASE_URL [KEY]`. Each line of the input is a JSON array:
`["NAME", METHOD, ARGUMENTS]`, where NAME numbers a client, made at its first
mention, and METHOD is the client's own. Each is answered by one line: what the
client returned, or `{"raised": TYPE, "message": TEXT}`.
"""

import json
import sys
from dataclasses import asdict, is_dataclass
from importlib.metadata import version
from typing import Any

import openenv
from openenv.core.mcp_client import MCPToolClient


def plain(value: Any) -> Any:
    """What JSON can carry."""
    if is_dataclass(value) and not isinstance(value, type):
        return {name: plain(item) for name, item in asdict(value).items()}
    if hasattr(value, "model_dump"):
        return value.model_dump()
    return [plain(item) for item in value] if isinstance(value, list) else value


def main() -> None:
    """Serve until the input ends; leave without a goodbye, as a killed trainer does."""
    base_url = sys.argv[1]
    headers = {"Authorization": f"Bearer {sys.argv[2]}"} if len(sys.argv) > 2 else None
    clients: dict[str, Any] = {}
    for line in sys.stdin:
        name, method, arguments = json.loads(line)
        try:
            if method == "version":
                answer: Any = version("openenv")
            elif method == "resume":
                # The client appends `/ws` to whatever it is given: here to a parameter that nobody reads.
                url = f"{base_url}/ws?session_id={arguments['session_id']}&ignored="
                clients[name] = openenv.GenericEnvClient(base_url=url, headers=headers).sync()
                clients[name].connect()
                answer = None
            else:
                if name not in clients:
                    kind = MCPToolClient if name.startswith("mcp") else openenv.GenericEnvClient
                    clients[name] = kind(base_url=base_url, headers=headers).sync()
                    clients[name].connect()
                if method == "step":
                    answer = clients[name].step(arguments)
                else:
                    answer = getattr(clients[name], method)(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever it raises is what the test asks about
            answer = {"raised": type(error).__name__, "message": str(error)}
        sys.stdout.write(json.dumps(plain(answer)) + "\n")
        sys.stdout.flush()


main()
