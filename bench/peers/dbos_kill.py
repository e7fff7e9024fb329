"""DBOS with its SQLite database: killed after a step's effect, then started again."""

import os
import signal
import sys
from pathlib import Path

from dbos import DBOS, SetWorkflowID

folder, is_killed = Path(sys.argv[1]), sys.argv[2] == "kill"
DBOS(config={"name": "peer", "system_database_url": f"sqlite:///{folder / 'peer.db'}"})


@DBOS.step()
def deploy() -> str:
    """Deploy: one line in a file is the effect that everybody can see."""
    with (folder / "effects").open("a") as effects:
        effects.write("deployed\n")
    if is_killed:
        os.kill(os.getpid(), signal.SIGKILL)
    return "deployed"


@DBOS.workflow()
def turn() -> str:
    """Play a turn of one tool."""
    return deploy()


DBOS.launch()
with SetWorkflowID("one"):
    DBOS.start_workflow(turn).get_result()
print("remembered")
