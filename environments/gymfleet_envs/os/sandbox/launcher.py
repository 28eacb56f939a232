"""The process that makes sessions' namespaces: `python -I -m gymfleet_envs.os.sandbox.launcher DESCRIPTOR`.

The server is large and has threads, and neither may enter a user namespace; this process is small and has none. For
each session it forks a *steward*, which becomes root of the session's user namespace, mounts its layer, starts
bubblewrap in it, and stays outside of what bubblewrap shuts in. The agent cannot see it. Both end when their socket
to the server does, and what they started ends with them.
"""

import os
import signal
import socket
import sys

from gymfleet_envs.os.sandbox.namespaces import receive
from gymfleet_envs.os.sandbox.steward import Steward


def serve(control: socket.socket) -> None:
    """Fork a steward for each socket that comes; return when the server is gone."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends on it, and then this does
    while True:
        said, handles = receive(control, 16, 1)
        if not said:
            return
        if os.fork() == 0:
            control.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            try:
                Steward(socket.socket(fileno=handles[0])).serve()
            finally:
                os._exit(0)
        for handle in handles:
            os.close(handle)


if __name__ == "__main__":
    CONTROL = socket.socket(fileno=int(sys.argv[1]))
    CONTROL.set_inheritable(False)
    serve(CONTROL)
