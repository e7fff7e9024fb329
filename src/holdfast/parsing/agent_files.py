"""Agent files, `.agent.yaml`: reading, validating as a whole, and writing.

A file describes an agent but grants it nothing: its grant comes from the configuration. Errors name
places and rules, never values.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from holdfast.domain.agents import (
    SCHEMA_KEYS,
    LlmRuntime,
    Memory,
    ModelChoice,
    Recovery,
    Retry,
    has_secret_reference,
)
from holdfast.domain.errors import Code, Invalid, NotFound
from holdfast.domain.ids import is_slug
from holdfast.domain.models import model_of
from holdfast.domain.secrets import Scrubber, is_credential
from holdfast.domain.text import is_encodable
from holdfast.parsing.file_schemas import AgentFileForm, validate_agent
from holdfast.parsing.files import (
    Fault,
    FileError,
    FormError,
    invalid_file,
    read_text,
    syntax_error,
)
from holdfast.parsing.yaml import LARGEST, YamlError, read_yaml

ENDING: Final = ".agent.yaml"
_FAULTS_SHOWN: Final = 10


class FileModel(Struct, frozen=True, kw_only=True):
    """A model as `provider:name`, and its number of attempts."""

    ref: str
    max_attempts: int | None = None


class AgentFile(Struct, frozen=True, kw_only=True):
    """An agent as described by a file."""

    slug: str
    name: str
    description: str | None = None
    system_prompt: str
    models: tuple[FileModel, ...]
    runtime: LlmRuntime
    tools: tuple[str, ...] = ()
    mcp_servers: tuple[dict[str, Any], ...] = ()
    recovery: Recovery = Recovery.STOP
    extra: dict[str, Any] = {}

    def with_models(self, rename: Callable[[str], str]) -> "AgentFile":
        """Return the same agent with its model references renamed, such as a script by its path."""
        models = tuple(replace(model, ref=rename(model.ref)) for model in self.models)
        return replace(self, models=models, runtime=replace(self.runtime, models=_chain(models)))

    def fields(self) -> dict[str, Any]:
        """Return the service's arguments to create the agent, or to update it to match the file."""
        return {
            "slug": self.slug,
            "name": self.name,
            "description": self.description,
            "system_prompt": self.system_prompt,
            "models": tuple(model.ref for model in self.models),
            "runtime": self.runtime,
            "tools": [{"name": name} for name in self.tools],
            "mcp_servers": self.mcp_servers,
            "recovery": self.recovery,
            "extra": self.extra,
        }


def find_agent_file(ref: str, *, working_dir: Path, home: Path) -> Path | None:
    """Return the file that a reference means; `None` if it means a stored agent.

    A bare id is searched in the workspace, then in the home. A separator or a file extension makes
    it a path, relative to the working directory.
    """
    if "/" in ref or "\\" in ref or ref.endswith((".yaml", ".yml")):
        return working_dir / ref
    if not is_slug(ref):
        return None
    folders = (working_dir / ".holdfast" / "agents", home / "agents")
    candidates = (folder / f"{ref}{ENDING}" for folder in folders)
    return next((file for file in candidates if os.path.isfile(file)), None)


def read_agent_file(path: Path, scrubber: Scrubber | None = None) -> AgentFile:
    """Return the agent in a file; an unreadable or invalid file is refused."""
    try:
        text = read_text(path, largest=LARGEST)
    except FileError as error:
        if error.is_missing:
            raise NotFound(Code.AGENT_NOT_FOUND, f"There is no file {path}.") from None
        raise syntax_error(str(path), error, Code.AGENT_SYNTAX) from None
    return parse_agent(text, where=str(path), scrubber=scrubber)


def parse_agent(text: str, *, where: str, scrubber: Scrubber | None = None) -> AgentFile:
    """Return the agent described by YAML text; `where` names the source in errors."""
    try:
        raw = read_yaml(text)
    except YamlError as error:
        raise syntax_error(where, error, Code.AGENT_SYNTAX) from None
    return build_agent(raw, where=where, scrubber=scrubber)


def build_agent(raw: Any, *, where: str, scrubber: Scrubber | None = None) -> AgentFile:
    """Return the agent described by a value, such as an entry of a list in another file."""
    texts = list(_texts(raw, "", ""))
    managed = scrubber or Scrubber()
    leaks = [path for path, name, text in texts if managed.holds(text) or is_credential(text, name)]
    if leaks:
        # Redacted, because a key in the path may be the secret itself.
        paths = [managed.redact_and_mask(path) for path in dict.fromkeys(leaks[:_FAULTS_SHOWN])]
        raise Invalid(
            Code.SECRET_IN_FILE,
            f"{where} seems to contain a secret at {', '.join(paths)}; store it in the "
            "keychain (`holdfast key set`), and remove it from the file.",
            {"file": where, "fields": paths},
        )
    unclean = [path for path, _, text in texts if "\x00" in text or not is_encodable(text)]
    try:
        if unclean:
            raise FormError(
                [Fault(path, "a text contains an invalid character") for path in unclean]
            )
        form = validate_agent(raw)
    except FormError as error:
        raise invalid_file(
            where, "agent", error.faults[:_FAULTS_SHOWN], Code.AGENT_INVALID
        ) from error
    if has_secret_reference(form.system_prompt):
        raise Invalid(
            Code.SECRET_INTERPOLATION,
            f"A prompt must not contain a secret; remove {{{{secrets.…}}}} from {where}.",
            {"file": where, "field": "system_prompt"},
        )
    return _agent_of(form)


def _agent_of(form: AgentFileForm) -> AgentFile:
    values = msgspec.to_builtins(form)
    first = FileModel(ref=f"{form.provider}:{form.model}")
    others = [
        FileModel(ref=f"{each.provider}:{each.model}", max_attempts=each.max_attempts)
        for each in form.fallback_chain
    ]
    extra = {key: values[key] for key in SCHEMA_KEYS if key in values}
    return AgentFile(
        slug=form.id,
        name=form.id if form.name is UNSET else form.name,
        description=values.get("description"),
        system_prompt=form.system_prompt,
        models=(first, *others),
        runtime=LlmRuntime(
            models=_chain((first, *others)),
            temperature=values.get("temperature"),
            max_tokens=values.get("max_tokens"),
            reasoning_effort=None if form.reasoning_effort is UNSET else form.reasoning_effort,
            retry=_retry(values.get("retry")),
            memory=Memory(**values["memory"]) if "memory" in values else None,
        ),
        tools=form.tools,
        mcp_servers=form.mcp_servers,
        recovery=form.recovery,
        extra=extra,
    )


def _chain(models: tuple[FileModel, ...]) -> tuple[ModelChoice, ...]:
    return tuple(
        ModelChoice(model_id=model_of(model.ref).id, max_attempts=model.max_attempts)
        for model in models
    )


def _retry(values: dict[str, Any] | None) -> Retry | None:
    return None if values is None else msgspec.convert(values, Retry)


def _texts(value: Any, path: str, name: str) -> Iterator[tuple[str, str, str]]:
    """Yield each text, including keys, with its path and the key it belongs to."""
    if isinstance(value, str):
        yield path, name, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield f"{path}.{key}".removeprefix("."), "", key
            yield from _texts(inner, f"{path}.{key}".removeprefix("."), key)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _texts(inner, f"{path}[{number}]", name)
