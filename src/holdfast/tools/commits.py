"""`git_commit`: exactly the commit that somebody agreed to, made without running anything.

Planning makes everything of the commit but its last step, on the side, so that the question can
show it and the digest hold it. Acting makes it again, in place, and compares.
"""

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Final

from msgspec import Meta, Struct
from msgspec.structs import replace

from holdfast.domain.text import is_encodable, quote, visible
from holdfast.domain.tools import ResultCode, ToolClass
from holdfast.tools.indexes import index_locked
from holdfast.tools.pathspecs import pathspec, protected_among
from holdfast.tools.patience import to_its_end
from holdfast.tools.plumbing import Git, Settings, said
from holdfast.tools.repositories import Head, Repository, Shadow
from holdfast.tools.staging import Staging
from holdfast.tools.surroundings import Surroundings
from holdfast.tools.threads import in_thread
from holdfast.tools.tool import Aim, ToolTrouble
from holdfast.tools.troubles import protected

_EMPTY_TREES: Final[Mapping[str, str]] = {
    "sha1": "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "sha256": "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}

Path = Annotated[str, Meta(min_length=1, max_length=4096)]


class CommitArguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `git_commit` takes."""

    message: Annotated[str, Meta(min_length=1, max_length=64 << 10)]
    paths: Annotated[tuple[Path, ...], Meta(max_length=1000)] = ()

    def __post_init__(self) -> None:
        if not self.message.strip() or "\x00" in self.message or not is_encodable(self.message):
            raise ValueError("The message is empty, or no text")
        if any(path.startswith(("-", "/")) for path in self.paths):
            raise ValueError("Paths are relative and do not begin with a dash")


class Prepared(Struct, frozen=True, kw_only=True):
    """A commit but for its object: what it would hold and where it would stand."""

    head: Head
    tree: str
    author: tuple[str, str]
    stat: str
    # What the named paths stage.
    names: tuple[str, ...]


# What the plan of a call found, for the act that follows it in the same task.
_planned: Final[ContextVar[tuple[CommitArguments, Prepared]]] = ContextVar("planned commit")


class Commits:
    """Plans and makes commits in one repository."""

    def __init__(self, git: Git, repository: Repository, around: Surroundings) -> None:
        self._git = git
        self._repository = repository
        self._around = around

    async def plan(self, arguments: CommitArguments) -> Aim:
        """Make the commit on the side and say what it would be."""
        prepared = await self._prepared(arguments)
        _planned.set((arguments, prepared))
        return Aim(
            tool_class=ToolClass.COMMIT,
            targets=(
                f"repository={self._repository.git_dir}",
                f"branch={prepared.head.ref}",
                f"head={prepared.head.commit}",
                f"tree={prepared.tree}",
                f"author={prepared.author}",
            ),
            question=self._question(arguments, prepared),
            preview={"path": self._repository.top},
        )

    async def act(self, arguments: CommitArguments) -> dict[str, Any]:
        """Make the commit that was planned."""
        planned, wanted = _planned.get((None, None))
        if wanted is None or planned != arguments:
            raise _changed()
        with index_locked(self._repository.git_dir) as lock:
            async with self._git.shadow(self._repository) as (shadow, head, settings):
                staging = Staging(self._git, shadow, in_place=True)
                tree = await staging.tree(await in_thread(lambda _: self._specs(arguments)))
                if replace(wanted, head=head, tree=tree, author=_author(settings)) != wanted:
                    raise _changed()
                await staging.require_no_filter(wanted.names)
                commit = await self._committed(arguments, wanted, shadow)

                async def advance() -> None:
                    await self._advanced(arguments, wanted, commit)
                    await in_thread(lambda _: lock.install(shadow.index))

                # Not to be torn apart: a branch that has the commit needs the index that fits.
                await to_its_end(advance())
        branch = (wanted.head.ref or "detached HEAD").removeprefix("refs/heads/")
        subject = arguments.message.strip().splitlines()[0]
        return {
            "commit": commit,
            "exit_code": 0,
            "stdout": f"[{branch} {commit[:10]}] {subject}\n{wanted.stat}",
            "stderr": "",
        }

    async def _prepared(self, arguments: CommitArguments) -> Prepared:
        specs = await in_thread(lambda _: self._specs(arguments))
        if (unfinished := self._repository.unfinished()) is not None:
            raise ToolTrouble(
                ResultCode.FAILED, f"Something was begun here and not ended: {unfinished}."
            )
        async with self._git.shadow(self._repository) as (shadow, head, settings):
            staging = Staging(self._git, shadow, in_place=False)
            before = await staging.tree(())
            tree = await staging.tree(specs) if specs else before
            names = await staging.changed(before, tree)
            closed = await in_thread(
                lambda _: protected_among(names, self._repository, self._around)
            )
            if closed:
                raise protected(visible(closed[0]))
            await staging.require_no_filter(names)
            base = head.commit or _EMPTY_TREES[settings.get("extensions.objectformat", "sha1")]
            stat = await staging.stat(base, tree)
            if not stat.strip():
                raise ToolTrouble(ResultCode.FAILED, "There is nothing to commit.")
            return Prepared(head=head, tree=tree, author=_author(settings), stat=stat, names=names)

    def _specs(self, arguments: CommitArguments) -> list[str]:
        return [pathspec(path, self._repository, self._around) for path in arguments.paths]

    async def _committed(
        self, arguments: CommitArguments, prepared: Prepared, shadow: Shadow
    ) -> str:
        parent = ("-p", prepared.head.commit) if prepared.head.commit else ()
        made = await self._git(
            *("commit-tree", prepared.tree, *parent, "-m", arguments.message),
            about=shadow.about(in_place=True) | _signed(prepared.author),
            folder=self._repository.top,
            readable=(shadow.path,),
            writable=(self._repository.objects,),
        )
        return said(made).stdout.strip()

    async def _advanced(self, arguments: CommitArguments, prepared: Prepared, commit: str) -> None:
        """Move the branch, if it still is where it was."""
        repository = self._repository
        was = prepared.head.commit or "0" * len(commit)
        note = f"commit: {visible(arguments.message.strip().splitlines()[0])}"
        moved = await self._git(
            *("update-ref", "-m", note, "HEAD", commit, was),
            about={"GIT_DIR": repository.git_dir, **_signed(prepared.author)},
            folder=repository.top,
            writable=(repository.git_dir, repository.common_dir),
        )
        if moved.exit_code:
            raise _changed()

    def _question(self, arguments: CommitArguments, prepared: Prepared) -> str:
        name, address = prepared.author
        paths = ", ".join(visible(path) for path in arguments.paths)
        return "\n".join(
            [
                f"Commit to {visible(prepared.head.ref or 'no branch')}"
                f" in {visible(self._repository.top)}",
                f"as {visible(name)} <{visible(address)}>",
                *([f"staging first: {paths}"] if paths else []),
                "with the message",
                quote(arguments.message),
                "which changes",
                quote(prepared.stat.rstrip("\n")),
                "Hooks, filters, fsmonitor and signing programs do not run.",
            ]
        )


def _author(settings: Settings) -> tuple[str, str]:
    name, address = settings.get("user.name", ""), settings.get("user.email", "")
    if not name or not address:
        raise ToolTrouble(
            ResultCode.UNAVAILABLE,
            "git does not know who commits: set user.name and user.email with git config --global.",
        )
    return name, address


def _signed(author: tuple[str, str]) -> dict[str, str]:
    roles = ("AUTHOR", "COMMITTER")
    return {
        f"GIT_{role}_{part}": value
        for role in roles
        for part, value in zip(("NAME", "EMAIL"), author, strict=True)
    }


def _changed() -> ToolTrouble:
    return ToolTrouble(
        ResultCode.TARGET_CHANGED,
        "The repository has changed since the commit was allowed; ask for it again.",
    )
