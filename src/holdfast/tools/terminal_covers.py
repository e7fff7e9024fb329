"""Cover protected paths for the commands of an agent's terminal.

The agent starts and ends these commands itself. They have full access as the user, except for
protected paths.
"""

import marshal
import os

from holdfast.process.cancellation import run_in_thread
from holdfast.process.child import supervisor_argv
from holdfast.process.launcher import Launcher
from holdfast.process.sandbox import Confinement, Guard, cover_orders
from holdfast.tools.process_context import ProcessSettings


class TerminalCovers:
    """Builds the argv prefix for terminal commands."""

    def __init__(self, settings: ProcessSettings, launcher: Launcher) -> None:
        self._settings = settings
        self._launcher = launcher

    async def words(self, folder: str) -> tuple[str, ...] | None:
        """Return the argv prefix for a command in a repository; see `RepositoryFiles.covering`."""
        means = await self._launcher.means()
        if not means.mounts:
            return () if self._settings.allows_unprotected else None
        confinement = await run_in_thread(lambda _: self._confinement(folder))
        order = marshal.dumps(cover_orders(confinement, means)).hex()
        return (*supervisor_argv("wrapper"), order)

    def _confinement(self, folder: str) -> Confinement:
        settings, home = self._settings, self._settings.environment.get("HOME")
        return Confinement(
            is_jailed=False,
            writable=(folder,),
            hidden=tuple(map(os.path.realpath, settings.hidden)),
            has_network=True,
            guard=Guard(
                roots=(folder,),
                open_names=settings.command_writes,
                home=None if home is None else os.path.realpath(home),
                # Agents pass whole command lines to a shell, and many of them use git.
                writes_git=True,
            ),
            bounds=settings.bounds,
        )
