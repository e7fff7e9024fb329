"""What is started for an MCP server: which program, what it is told, and how far it reaches.

A server reaches what the commands of its session reach, and what the user's configuration adds.
"""

import os
from collections.abc import Iterable, Iterator
from typing import Final

from holdfast.domain.tools import ResultCode
from holdfast.ports import ToolWorkspace
from holdfast.tools.children import Order
from holdfast.tools.environments import is_below
from holdfast.tools.programs import Program, find_program
from holdfast.tools.sandbox import Bounds, Confinement
from holdfast.tools.servers import StdioServer
from holdfast.tools.surroundings import ProcessSettings, Surroundings, surroundings_of
from holdfast.tools.tool import ToolTrouble

# A folder that nobody who works in a session decides about: `python -m NAME`, and every name in
# the arguments that is no path of its own, would be looked for in the folder of somebody else's
# repository, and be run with the secrets of the server.
NOWHERE: Final = "/"


def order_for(server: StdioServer, place: ToolWorkspace, settings: ProcessSettings) -> Order:
    """Return how to start a server at a place, but for its own variables; looks at the files."""
    around = surroundings_of(place, settings)
    folder = around.folder if server.cwd == "workspace" else NOWHERE
    program = find_program(server.command, path=around.path, folder=folder)
    if program is None:
        raise _missing(server, folder)
    home = _home(server, around)
    return Order(
        argv=(server.command, *server.args),
        program=program.path,
        program_identity=program.identity,
        folder=folder,
        folder_identity=around.folder_identity if folder == around.folder else (),
        environment={**around.environment, **home, **dict(_own(server, around, settings))},
        confinement=_confinement(server, around, program, tuple(set(home.values()))),
    )


def _home(server: StdioServer, around: Surroundings) -> dict[str, str]:
    """Return where a server of a jailed session is at home, made if it is missing.

    Out of reach for the session's commands, which could leave there what the server would run.
    """
    if not around.is_jailed or not server.confined:
        return {}
    # Behind a word, because a server may be called `..`.
    home = os.path.join(f"{around.scratch}.servers", f"of-{server.id}")
    try:
        os.makedirs(home, mode=0o700, exist_ok=True)
    except OSError as error:
        raise ToolTrouble(ResultCode.UNAVAILABLE, "its folder cannot be made") from error
    return {"HOME": home, "TMPDIR": home}


def _own(
    server: StdioServer, around: Surroundings, settings: ProcessSettings
) -> Iterator[tuple[str, str]]:
    if not server.confined and around.user_home is not None:
        yield "HOME", around.user_home
    for name in server.env_names:
        if name in settings.environment:
            yield name, settings.environment[name]


def _confinement(
    server: StdioServer, around: Surroundings, program: Program, home: tuple[str, ...]
) -> Confinement:
    reach = around.confinement(program)
    # Whoever names a file in a command means it to be read.
    named = [word for word in server.args if os.path.isabs(word) and os.path.exists(word)]
    return Confinement(
        is_jailed=reach.is_jailed and server.confined,
        readable=(*reach.readable, *_added((*named, *server.readable), around)),
        writable=(*reach.writable, *home, *_added(server.writable, around)),
        hidden=reach.hidden,
        has_network=reach.has_network or server.network or not server.confined,
        guard=reach.guard if server.confined else None,
        # A server lives as long as its session: what it takes adds up.
        bounds=Bounds(processes=reach.bounds.processes),
    )


def _added(paths: Iterable[str], around: Surroundings) -> Iterator[str]:
    """Yield the real paths that a server gets for itself; none of them leads to what is ours."""
    for path in map(os.path.realpath, paths):
        if not any(is_below(path, folder) for folder in around.hidden):
            yield path


def _missing(server: StdioServer, folder: str) -> ToolTrouble:
    is_there = "/" in server.command and os.path.exists(os.path.join(folder, server.command))
    why = "its command cannot be run" if is_there else "its command is not there"
    return ToolTrouble(ResultCode.UNAVAILABLE, why)
