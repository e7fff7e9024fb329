"""A process that starts a command which forks away, and is killed while that one lives.

`how` is the launcher, the launcher without namespaces, the start of an external agent, or a plain
subprocess.
"""

import asyncio
import sys
from pathlib import Path

from holdfast.acp.client.agent_command import AgentStart
from holdfast.acp.client.agent_process import AgentProcess
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Means
from tests.tools.process_fixture import python

# Twice forked, in a session of its own, deaf to TERM, with no stream of its parent's.
AWAY = """
import os, signal, time
mark = "{mark}"
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for stream in range(3):
            os.close(stream)
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""


async def main(folder: str, mark: str, how: str) -> None:
    """Start the command and stay with it."""
    source = AWAY.format(mark=mark)
    if how == "plain":
        await asyncio.create_subprocess_exec(sys.executable, "-c", source, start_new_session=True)
        await asyncio.sleep(600)
    start = AgentStart(argv=(sys.executable, "-c", source), folder=folder, environment={})
    if how == "agent":
        await AgentProcess.spawn(start)
        await asyncio.sleep(600)
    launcher = Launcher(Means()) if how == "open" else Launcher()
    await launcher.run(python(source, Path(folder)), time_limit=600)
