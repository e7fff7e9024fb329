"""Git as an allowed command: it runs no program that the repository's configuration names.

There are two layers of defence. Environment variables override every repository setting that names
a program; the user's own settings remain. With Landlock and a jailed session, a built-in subcommand
can also execute nothing except git.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from msgspec import Struct

from holdfast.process.executables import Executable, executables, find_executable
from holdfast.process.launcher import Launcher
from holdfast.tools.git.cli import Git
from holdfast.tools.git.repository import read_regular_file
from holdfast.tools.process_context import ProcessContext

Words = tuple[str, ...]
Setting = tuple[str, str]

_GITMODULES_LARGEST: Final = 1 << 20
_ENVIRONMENT: Final[Mapping[str, str]] = {
    # Without `ext::`, which runs a command, and `file`, which runs hooks of another repository.
    "GIT_ALLOW_PROTOCOL": "http:https:ssh:git",
    "GIT_ASKPASS": "",
    "GIT_EDITOR": ":",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_PAGER": "cat",
    "GIT_SEQUENCE_EDITOR": ":",
    "GIT_TERMINAL_PROMPT": "0",
}
# Always overridden. Git must not start children in submodules, because those would read the
# submodule's own configuration.
_ALWAYS: Final[Mapping[str, str]] = {
    "core.fsmonitor": "false",
    "core.hookspath": os.devnull,
    "diff.ignoresubmodules": "all",
    "diff.submodule": "short",
    "fetch.recursesubmodules": "false",
    "protocol.ext.allow": "never",
    "push.recursesubmodules": "no",
    "status.submodulesummary": "false",
    "submodule.recurse": "false",
}
# Settings that name a program, with a neutral value. The first match applies.
_NEUTRAL: Final = tuple(
    (re.compile(pattern, re.DOTALL), value)
    for pattern, value in (
        (r"alias\..*", ""),
        (r"commit\.gpgsign|tag\.gpgsign|push\.gpgsign|log\.showsignature", "false"),
        (r"core\.alternaterefscommand", "true"),
        (r"core\.(?:askpass|editor)|sequence\.editor", ":"),
        (r"core\.gitproxy", "none"),
        (r"core\.pager|interactive\.difffilter", "cat"),
        (r"core\.sshcommand", "ssh"),
        (r"diff\.(?:.*\.)?(?:command|textconv|external)", "false"),
        (r"gc\.recentobjectshook|uploadpack\.packobjectshook", "true"),
        (r"gpg\.ssh\.defaultkeycommand", ""),
        (r"gpg\.ssh\.program", "ssh-keygen"),
        (r"gpg\.x509\.program", "gpgsm"),
        (r"gpg\.(?:.*\.)?program", "gpg"),
        (r"hook\..*\.enabled", "false"),
        (r"hook\..*\.command", "true"),
        (r"imap\.tunnel|sendemail\.(?:.*\.)?(?:.*cmd|smtpserver)", "false"),
        (r"init\.templatedir", ""),
        (r"(?:web|help|man|instaweb)\.(?:browser|viewer|httpd)", "false"),
        (r"(?:browser|difftool|guitool|man|mergetool|lfs)\..*\.(?:cmd|path)", "false"),
        (r"merge\..*\.driver|tar\..*\.command|trailer\..*\.(?:command|cmd)", "false"),
        (r"pager\..*", "false"),
        (r"remote\..*\.receivepack", "git-receive-pack"),
        (r"remote\..*\.uploadpack", "git-upload-pack"),
        (r"submodule\..*\.update", "none"),
    )
)
_FILTER: Final = re.compile(r"(filter\..*|lfs\.extension\..*)\.[^.]+", re.DOTALL)
_FILTER_FIELDS: Final = ("clean", "smudge", "process")
_HELPER: Final = re.compile(r"credential\.(?:.*\.)?helper", re.DOTALL)
_DIFF_DRIVER: Final = re.compile(r"diff\.(?:.*\.)?(?:command|textconv|external)", re.DOTALL)
_SUBMODULE: Final = re.compile(r"submodule\.(.+)\.[^.]+", re.DOTALL)
_SUBMODULE_SECTION: Final = re.compile(
    rb'^[ \t]*\[[ \t]*submodule[ \t]+"((?:[^"\\\n]|\\.)*)"[ \t]*\]', re.IGNORECASE | re.MULTILINE
)
_OF_USER: Final = frozenset({"system", "global"})
_OF_REPOSITORY: Final = frozenset({"local", "worktree"})

# Read-only subcommands; files that need a filter are shown unfiltered.
_READING: Final = frozenset(
    {
        *("annotate", "blame", "cat-file", "describe", "diff", "diff-files", "diff-index"),
        *("diff-tree", "grep", "log", "ls-files", "ls-tree", "name-rev", "range-diff", "reflog"),
        *("rev-list", "rev-parse", "shortlog", "show", "show-branch", "show-ref", "status"),
        *("whatchanged", "for-each-ref", "merge-base", "count-objects", "var", "version"),
    }
)
# Subcommands that work without other programs.
_CONTAINED: Final = _READING | frozenset(
    {
        *("add", "am", "apply", "archive", "branch", "bundle", "checkout", "cherry", "clean"),
        *("cherry-pick", "commit", "commit-tree", "config", "format-patch", "fsck", "gc", "init"),
        *("hash-object", "maintenance", "merge", "mv", "notes", "prune", "read-tree", "rebase"),
        *("repack", "replace", "reset", "restore", "revert", "rm", "sparse-checkout", "stage"),
        *("stash", "switch", "symbolic-ref", "tag", "update-index", "update-ref", "worktree"),
        *("write-tree", "checkout-index", "check-attr", "check-ignore", "pack-refs", "rerere"),
    }
)
# Subcommands that convert their output, and the options that disable the converters.
_PLAIN_DIFF: Final = ("--no-ext-diff", "--no-textconv")
_PLAIN: Final[Mapping[str, Words]] = {
    **dict.fromkeys(("diff", "log", "show", "whatchanged", "format-patch"), _PLAIN_DIFF),
    **dict.fromkeys(("diff-files", "diff-index", "diff-tree"), _PLAIN_DIFF),
    **dict.fromkeys(("annotate", "blame", "grep"), ("--no-textconv",)),
}
_WITH_VALUE: Final = frozenset(
    {
        *("-C", "-c", "--git-dir", "--work-tree", "--namespace", "--super-prefix"),
        *("--config-env", "--attr-source"),
    }
)
_UNRELATED: Final = ("-p", "--paginate", "-P", "--no-pager", "--exec-path", "--html-path")


class HardenedCall(Struct, frozen=True, kw_only=True):
    """The hardened form of a git call: argv, extra environment, and allowed executables."""

    argv: Words
    environment: Mapping[str, str]
    # `None` allows everything readable.
    executable: tuple[str, ...] | None = None


class _Call(NamedTuple):
    """The parsed words of a git call."""

    options: Words
    subcommand: str
    rest: Words


def names_git(call: Words) -> bool:
    """Return whether a call runs git, directly or through another program."""
    return any(os.path.basename(word) == "git" for word in call)


async def harden(
    call: Words, program: Executable, context: ProcessContext, launcher: Launcher
) -> HardenedCall:
    """Return the call with all programs from the repository's configuration disabled."""
    is_git = os.path.basename(call[0]) == "git"
    git = program if is_git else find_executable("git", path=context.path, folder=context.folder)
    words = _parse(call) if is_git else _Call((), "", ())
    if git is None:
        return HardenedCall(argv=call, environment=dict(_ENVIRONMENT))
    caller = Git(launcher, git, context)
    entries = await _entries(caller, words.options, context)
    executable = _own_programs(git) if words.subcommand in _CONTAINED else None
    # Landlock already blocks programs of submodules, so their names are not needed.
    is_held = executable is not None and context.is_jailed and (await launcher.means()).landlock
    names = () if is_held else await _submodules(caller, words.options, context.folder)
    settings = tuple(overrides(entries, submodules=names, reads=words.subcommand in _READING))
    own = {"GIT_CONFIG_GLOBAL": os.devnull} if context.is_jailed else {}
    return HardenedCall(
        argv=_plain(call, words) if _has_drivers(entries) else call,
        environment={**_ENVIRONMENT, **own, **_as_environment(settings)},
        executable=executable,
    )


def overrides(
    entries: Sequence[tuple[str, str, str]], *, submodules: Iterable[str], reads: bool
) -> Iterator[Setting]:
    """Yield the settings that override the repository's; entries are scope, key and value.

    With `reads`, a disabled filter passes content through. Otherwise the call fails at the filter,
    so that nothing is stored unfiltered.
    """
    users = {key: value for scope, key, value in entries if scope in _OF_USER}
    theirs = dict.fromkeys(key for scope, key, _ in entries if scope in _OF_REPOSITORY)
    for key, value in _ALWAYS.items():
        yield key, _user_hooks(key, users) or value
    for key in theirs:
        neutral = next((value for pattern, value in _NEUTRAL if pattern.fullmatch(key)), None)
        if neutral is not None:
            yield key, users.get(key, neutral)
    for name in dict.fromkeys(found[1] for key in theirs if (found := _FILTER.fullmatch(key))):
        fields = {field: users.get(f"{name}.{field}", "") for field in _FILTER_FIELDS}
        yield from ((f"{name}.{field}", value) for field, value in fields.items())
        is_users = any(fields.values())
        required = users.get(f"{name}.required", "false") if is_users else str(not reads).lower()
        yield f"{name}.required", required
    yield from _helpers(entries, theirs)
    known = (each[1] for key in theirs if (each := _SUBMODULE.fullmatch(key)))
    for name in dict.fromkeys((*known, *submodules)):
        yield f"submodule.{name}.ignore", "all"


def _user_hooks(key: str, users: Mapping[str, str]) -> str | None:
    """Return the user's hooks folder; a relative path would resolve inside the repository."""
    folder = users.get(key, "") if key == "core.hookspath" else ""
    return folder if folder.startswith(("/", "~")) else None


def _helpers(entries: Sequence[tuple[str, str, str]], theirs: Iterable[str]) -> Iterator[Setting]:
    """Yield only the user's credential helpers; an empty value resets the list before it."""
    dropped = [key for key in theirs if _HELPER.fullmatch(key)]
    yield from ((key, "") for key in dropped)
    if dropped:
        for scope, key, value in entries:
            if scope in _OF_USER and _HELPER.fullmatch(key):
                yield key, value


async def _entries(git: Git, options: Words, context: ProcessContext) -> list[tuple[str, str, str]]:
    """Return the whole configuration that git would read in this call."""
    variables: dict[str, str] = {}
    if not context.is_jailed:
        home = context.user_home or ""
        # An empty value removes our override, so that the user's and system's files are read.
        variables = {"HOME": home, "GIT_CONFIG_GLOBAL": "", "GIT_CONFIG_NOSYSTEM": ""}
    found = await git.config(*_global_options(options), variables=variables, folder=context.folder)
    return [(scope, key, value or "") for scope, key, value in found]


def _parse(call: Words) -> _Call:
    at = 1
    while at < len(call) and call[at].startswith("-"):
        at += 2 if call[at] in _WITH_VALUE else 1
    subcommand = call[at] if at < len(call) else ""
    return _Call(call[1:at], subcommand, call[at + 1 :])


def _global_options(options: Words) -> Words:
    """Return the global options that determine which repository and settings git reads."""
    return tuple(word for word in options if not word.startswith(_UNRELATED))


def _plain(call: Words, words: _Call) -> Words:
    """Return the call with options that prevent git from running converters."""
    more = _PLAIN.get(words.subcommand, ())
    return (call[0], *words.options, words.subcommand, *more, *words.rest) if more else call


def _has_drivers(entries: Iterable[tuple[str, str, str]]) -> bool:
    return any(scope in _OF_REPOSITORY and _DIFF_DRIVER.fullmatch(key) for scope, key, _ in entries)


async def _submodules(git: Git, options: Words, folder: str) -> list[str]:
    """Return the names in `.gitmodules` from the worktree, the index or the last commit."""
    top = _top_above(folder, options)
    content = read_regular_file(f"{top}/.gitmodules", _GITMODULES_LARGEST)
    for revision in (":.gitmodules", "HEAD:.gitmodules"):
        if content is None:
            words = (*_global_options(options), "cat-file", "blob", revision)
            found = await git(*words, variables={}, folder=folder)
            content = found.output.whole() if found.exit_code == 0 else None
    sections = _SUBMODULE_SECTION.finditer(content or b"")
    return [os.fsdecode(re.sub(rb"\\(.)", rb"\1", found[1])) for found in sections]


def _top_above(folder: str, options: Words) -> str:
    for option, value in pairwise(options):
        folder = os.path.join(folder, value) if option == "-C" else folder
    folder = os.path.realpath(folder)
    while not os.path.lexists(f"{folder}/.git") and folder != "/":
        folder = os.path.dirname(folder)
    return folder


def _as_environment(settings: Sequence[Setting]) -> dict[str, str]:
    numbered = {"GIT_CONFIG_COUNT": str(len(settings))}
    for at, (key, value) in enumerate(settings):
        numbered |= {f"GIT_CONFIG_KEY_{at}": key, f"GIT_CONFIG_VALUE_{at}": value}
    return numbered


def _own_programs(git: Executable) -> tuple[str, ...] | None:
    """Return git, its loader, and the folder of its own programs."""
    own = executables(git.real)
    prefix = os.path.dirname(os.path.dirname(git.real))
    folders = (f"{prefix}/{name}/git-core" for name in ("lib", "libexec", "lib64"))
    return None if own is None else (*own, *(each for each in folders if os.path.isdir(each)))
