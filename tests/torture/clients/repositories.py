"""A process that looks at repositories and commits to them, while another watches what it runs."""

from pathlib import Path

from tests.tools.process_fixture import Workbench


async def main(folders: list[str]) -> None:
    """Do all that git tools do at each place, whatever comes of it."""
    for folder in folders:
        bench = Workbench(Path(folder))
        for show in ("status", "log", "diff"):
            await bench.call("git_status", show=show)
        await bench.call("git_commit", message="ours", paths=["a.txt"])
