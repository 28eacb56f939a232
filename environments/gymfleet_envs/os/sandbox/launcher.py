"""The process that makes sessions' namespaces: `python -I -m gymfleet_envs.os.sandbox.launcher DESCRIPTOR`.

The server is large and has threads, so it may not enter a user namespace; this process is small and has no threads.
For each session it forks a *steward*, which becomes root of the session's user namespace, mounts the session's layer,
starts bubblewrap in the namespace, and stays outside the part that bubblewrap isolates. The agent cannot see the
steward. Launcher and stewards end when their socket to the server closes, and the processes they started end with them.
"""

import os
import signal
import socket
import sys

from gymfleet_envs.os.sandbox.namespaces import receive
from gymfleet_envs.os.sandbox.steward import Steward


def serve(control: socket.socket) -> None:
    """Fork a steward for each socket received; return when the server is gone."""
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
