"""Kill peers after a tool's effect and tell them to go on: `python -m bench.peers PYTHON [ROUNDS]`.

PYTHON is an interpreter of an environment that has langgraph, langgraph-checkpoint-sqlite and dbos.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

HERE = Path(__file__).parent
PEERS = ("langgraph", "dbos")


def main() -> int:
    """Print for each peer how often the effect happened twice, and how often it was forgotten."""
    python, rounds = sys.argv[1], int((*sys.argv[2:], "10")[0])
    for peer in PEERS:
        counted = Counter(outcome(python, peer) for _ in range(rounds))
        print(f"{peer}: {rounds} kills: {dict(counted)}")
    return 0


def outcome(python: str, peer: str) -> str:
    """Kill a peer once, let it go on, and say what became of the effect."""
    with TemporaryDirectory() as folder:
        said = ""
        for what in ("kill", "go on"):
            command = [python, str(HERE / f"{peer}_kill.py"), folder, what]
            run = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
            said = run.stdout
        effects = (Path(folder) / "effects").read_text().count("deployed")
        if effects > 1:
            return "ran twice"
        return "ran once, known" if "remembered" in said else "ran once, forgotten"


if __name__ == "__main__":
    sys.exit(main())
