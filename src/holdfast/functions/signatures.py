"""Signatures of functions as JSON schemas, and the strict conversion of a call's arguments."""

import copy
import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from inspect import cleandoc
from typing import Any, Final, get_type_hints

import msgspec
from msgspec import Struct, field

from holdfast.domain.errors import Code, Invalid
from holdfast.functions.context import ToolCallContext
from holdfast.functions.types import Parameter, UnsayableError, is_model, translate_parameter

TEXT_LARGEST: Final = 4 << 10
_WHOLE_BELOW: Final = 2.0**53
# Replaces the value that msgspec shows in these two messages.
_VALUE: Final = re.compile(r"^(Invalid (?:enum )?value) .*?(?= - at `|$)", re.DOTALL)
_ABSENT: Final = object()
_REF: Final = "#/$defs/"
# Between a model and its definition, in names that are replaced before the schema is returned.
_MARK: Final = "\x00"
# Keys whose values are names of the author, each with a schema.
_NAMED: Final = frozenset({"properties", "$defs", "patternProperties", "dependentSchemas"})
# Keys whose values are data.
_DATA: Final = frozenset({"default", "enum", "const", "examples", "required"})


class InvalidArgumentsError(Exception):
    """Arguments that do not fit; the message names the path and never the value."""


class Signature(Struct, frozen=True, kw_only=True):
    """How a function is called with the arguments of a model."""

    description: str
    # One JSON schema: an object without references at its root.
    schema: dict[str, Any]
    arguments: Any
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    defaults: Mapping[str, Any]
    context: str | None

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the parameters; raises `InvalidArgumentsError`."""
        # Copied, because the function may change what it gets, and the record must not change.
        given = _copy_json(dict(arguments))
        try:
            found = self._read(given)
        except msgspec.ValidationError as error:
            if "Expected `int" not in str(error) or "got `float`" not in str(error):
                raise InvalidArgumentsError(_describe(error)) from None
            found = self._read_whole_floats(given)
        values = {}
        for name in (*self.positional, *self.keywords):
            value = getattr(found, name, _ABSENT)
            if value is _ABSENT and name in self.defaults:
                value = copy.deepcopy(self.defaults[name])
            if value is not _ABSENT:
                values[name] = value
        return values

    def bind(
        self, values: Mapping[str, Any], context: ToolCallContext
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments of one Python call."""
        given = dict(values)
        if self.context is not None:
            given[self.context] = context
        positional = [given.pop(name) for name in self.positional if name in given]
        return positional, given

    def _read(self, arguments: Any) -> Any:
        return msgspec.convert(arguments, self.arguments, str_keys=True, dec_hook=read_model)

    def _read_whole_floats(self, arguments: dict[str, Any]) -> Any:
        try:
            return self._read(_whole_numbers(arguments))
        except msgspec.ValidationError as error:
            raise InvalidArgumentsError(_describe(error)) from None


class _AnyArguments(Signature, frozen=True, kw_only=True):
    """Takes whatever the caller passes, as keywords."""

    def convert(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a copy, because the function may change what it gets."""
        copied: dict[str, Any] = _copy_json(dict(arguments))
        return copied


def _copy_json(value: Any) -> Any:
    """Return a copy of plain JSON, which `deepcopy` makes several times slower."""
    if isinstance(value, dict):
        return {key: _copy_json(each) for key, each in value.items()}
    return list(map(_copy_json, value)) if isinstance(value, list) else value


ANY_ARGUMENTS: Final = _AnyArguments(
    description="",
    schema={"type": "object"},
    arguments=None,
    positional=(),
    keywords=(),
    defaults={},
    context=None,
)


def read_signature(function: Callable[..., Any], *, name: str, doc: str | None) -> Signature:
    """Return the signature of a function; refuses one that no schema can say."""
    found, context = _parameters(function, name)
    docstring = parse_docstring(doc)
    known = {each.name for each in found} | {context}
    for documented in docstring.parameters:
        if documented not in known:
            raise refuse(name, documented, "its docstring describes it, but there is no such one")
    texts = {each.name: each.text or docstring.parameters.get(each.name) for each in found}
    for parameter, text in texts.items():
        if len((text or "").encode(errors="replace")) > TEXT_LARGEST:
            raise refuse(name, parameter, "its text has more than 4 KiB; shorten it")
    positional = [each.name for each in found if each.is_positional]
    if context is not None and _is_positional_only(function, context):
        raise refuse(name, context, "it is positional-only; let it be passed by name")
    arguments = msgspec.defstruct(
        "Arguments",
        [
            (each.name, each.type)
            if each.default is inspect.Parameter.empty
            else (each.name, each.type, field(default_factory=lambda: _ABSENT))
            for each in found
        ],
        kw_only=True,
        forbid_unknown_fields=True,
    )
    return Signature(
        description=docstring.description,
        schema=_schema(name, found, texts),
        arguments=arguments,
        positional=tuple(positional),
        keywords=tuple(each.name for each in found if not each.is_positional),
        defaults=_copied_defaults(found),
        context=context,
    )


def refuse(function: str, parameter: str, why: str) -> Invalid:
    """Return the refusal of a function that cannot be a tool because of a parameter."""
    return Invalid(
        Code.TOOL_INVALID,
        f"{function} cannot be a tool: parameter {parameter}: {why}.",
        {"function": function, "parameter": parameter},
    )


def read_model(kind: Any, value: Any) -> Any:
    """Return a pydantic model, or another class with its methods, read from a JSON value."""
    try:
        if hasattr(kind, "model_validate_json"):
            return kind.model_validate_json(msgspec.json.encode(value), strict=True)
        return kind.model_validate(value)
    # Any class may be a model; its exceptions are not known here.
    except Exception as error:  # noqa: BLE001
        raise ValueError(f"Not a {kind.__name__}{_model_faults(error)}") from None


def _parameters(function: Callable[..., Any], name: str) -> tuple[list[Parameter], str | None]:
    inner, bound = function, frozenset[str]()
    if isinstance(function, functools.partial):
        inner, bound = function.func, frozenset(function.keywords)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    try:
        given = list(inspect.signature(function).parameters.values())
        hints = get_type_hints(inner, include_extras=True)
    except (NameError, AttributeError, TypeError, ValueError, SyntaxError) as error:
        raise Invalid(
            Code.TOOL_INVALID,
            f"{name} cannot be a tool: its type hints cannot be resolved ({error}); import or "
            "define the types in its module.",
            {"function": name},
        ) from None
    found: list[Parameter] = []
    context: str | None = None
    for place, each in enumerate(given):
        # What a partial has bound is not for the model to choose, and may be secret.
        if each.name in bound:
            continue
        if hints.get(each.name) is ToolCallContext:
            if context is not None:
                raise refuse(name, each.name, "only one parameter can be the ToolCallContext")
            context = each.name
            continue
        found.append(_parameter(name, each, hints, is_first=place == 0))
    return found, context


def _parameter(
    name: str, given: inspect.Parameter, hints: Mapping[str, Any], *, is_first: bool
) -> Parameter:
    if given.kind in {given.VAR_POSITIONAL, given.VAR_KEYWORD}:
        raise refuse(name, f"{given}".partition(":")[0], "name them, or take one `list[T]`")
    if given.name not in hints:
        if is_first and given.name in {"self", "cls"}:
            raise refuse(name, given.name, "an unbound method; pass the method of an object")
        raise refuse(name, given.name, "it has no annotation; add a type")
    if type(given.default).__name__ == "FieldInfo":
        raise refuse(name, given.name, "Field is its default; write `Annotated[T, Field(…)]`")
    try:
        return translate_parameter(given, hints[given.name])
    except UnsayableError as error:
        raise refuse(name, given.name, str(error)) from None


def _is_positional_only(function: Callable[..., Any], name: str) -> bool:
    given = inspect.signature(function).parameters[name]
    return given.kind is given.POSITIONAL_ONLY


def _schema(name: str, found: list[Parameter], texts: Mapping[str, str | None]) -> dict[str, Any]:
    try:
        schema = _SchemaBuilder().build(found)
    except (TypeError, ValueError) as error:
        # One by one, to find the parameter that the message does not name.
        for each in found:
            try:
                _SchemaBuilder().build([each])
            except (TypeError, ValueError) as fault:
                raise refuse(name, each.name, _unsupported(fault)) from None
        raise refuse(name, "of several", _unsupported(error)) from None
    for each in found:
        shown = schema["properties"][each.name]
        if text := texts[each.name]:
            shown["description"] = text
        if each.default is not inspect.Parameter.empty:
            _add_default(shown, each.default)
    return schema


def _unsupported(error: Exception) -> str:
    # Without the type at its end, which each version of Python writes in its own way.
    why = str(error).partition(" - type `")[0]
    return f"{why}; use types that JSON can tell apart, such as Structs with a tag"


def _add_default(shown: dict[str, Any], default: Any) -> None:
    """Show a default that JSON can say."""
    try:
        plain = msgspec.json.decode(msgspec.json.encode(default))
        # The encoder writes NaN as null.
        if plain is not None or default is None:
            shown["default"] = plain
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError):
        pass


def _copied_defaults(found: list[Parameter]) -> dict[str, Any]:
    """Return the defaults that are passed: copies of what a call may change, and those by place."""
    mutable = (list, dict, set, bytearray)
    return {
        each.name: each.default
        for each in found
        if isinstance(each.default, mutable)
        or (each.is_positional and each.default is not inspect.Parameter.empty)
    }


def _whole_numbers(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE_BELOW:
        return int(value)
    if isinstance(value, dict):
        return {key: _whole_numbers(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(each) for each in value]
    return value


def _describe(error: Exception) -> str:
    return _VALUE.sub(r"\1", str(error))


def _model_faults(error: Exception) -> str:
    """Return where a model does not fit and in which way, without any value."""
    faults = getattr(error, "errors", None)
    if not callable(faults):
        return ""
    try:
        found = [(fault["type"], fault["loc"]) for fault in faults()[:5]]
    # Any class may have a method of this name.
    except Exception:  # noqa: BLE001
        return ""
    return ": " + ", ".join(f"{kind} at {'.'.join(map(str, place))}" for kind, place in found)


class _SchemaBuilder:
    """Builds one schema; collects the definitions that models bring along."""

    def __init__(self) -> None:
        self._models: dict[Any, dict[str, Any]] = {}
        self._definitions: dict[str, dict[str, Any]] = {}

    def build(self, parameters: Sequence[Parameter]) -> dict[str, Any]:
        """Return the schema of an object with these properties, without titles."""
        types = [each.type for each in parameters]
        shown, parts = msgspec.json.schema_components(types, schema_hook=self._model)
        names = self._final_names(set(parts))
        parts |= {names[key]: schema for key, schema in self._definitions.items()}
        empty = inspect.Parameter.empty
        whole = {
            "type": "object",
            "properties": {
                each.name: schema for each, schema in zip(parameters, shown, strict=True)
            },
            "required": [each.name for each in parameters if each.default is empty],
            "additionalProperties": False,
        }
        found: dict[str, Any] = _mapped(
            {**whole, "$defs": parts} if parts else whole, lambda ref: names.get(ref, ref)
        )
        return found

    def _model(self, kind: Any) -> dict[str, Any]:
        if not is_model(kind):
            raise TypeError(f"{kind.__name__} cannot be said in a JSON schema")
        if kind not in self._models:
            mark = f"{len(self._models)}{_MARK}"
            schema = _mapped(kind.model_json_schema(), lambda name: mark + name)
            for name, definition in schema.pop("$defs", {}).items():
                self._definitions[mark + name] = definition
            self._models[kind] = schema
        return dict(self._models[kind])

    def _final_names(self, taken: set[str]) -> dict[str, str]:
        """Return a name for each definition of a model; equal definitions share one."""
        names: dict[str, str] = {}
        known: dict[str, Any] = {}
        for key, definition in self._definitions.items():
            wanted = key.partition(_MARK)[2]
            plain = _mapped(definition, lambda name: name.partition(_MARK)[2])
            name, number = wanted, 1
            while name in taken and known.get(name) != plain:
                number += 1
                name = f"{wanted}_{number}"
            taken.add(name)
            known[name], names[key] = plain, name
        return names


def _mapped(schema: Any, rename: Callable[[str], str]) -> Any:
    """Return a schema without titles and with its references renamed."""
    if isinstance(schema, list):
        return [_mapped(each, rename) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "title" and isinstance(value, str):
            continue
        if key == "$ref":
            found[key] = _REF + rename(value.removeprefix(_REF))
        elif key == "mapping" and isinstance(value, dict):
            # Of a discriminator: the references of its values.
            found[key] = {
                name: _mapped({"$ref": ref}, rename)["$ref"] for name, ref in value.items()
            }
        elif key in _NAMED and isinstance(value, dict):
            found[key] = {name: _mapped(each, rename) for name, each in value.items()}
        else:
            found[key] = value if key in _DATA else _mapped(value, rename)
    return found


_GOOGLE: Final = re.compile(r"(Args|Arguments|Parameters|Params|Keyword Arg(s|uments)):\s*")
_NUMPY: Final = re.compile(r"(Other )?Parameters\s*")
_UNDERLINE: Final = re.compile(r"-{3,}\s*")
_SPHINX: Final = re.compile(
    r":(?:param|parameter|arg|argument|key)\s+(?:[^:]*\s)?\*{0,2}(\w+):(.*)"
)
_SPHINX_TYPE: Final = re.compile(r":type\s+\w+:")
_GOOGLE_ENTRY: Final = re.compile(r"\*{0,2}(\w+)(?:\s*\(.*?\))?\s*:(.*)")
_NUMPY_ENTRY: Final = re.compile(r"(\*{0,2}\w+(?:\s*,\s*\*{0,2}\w+)*)\s*(?::.*)?")


class Docstring(Struct, frozen=True):
    """The description without its parameter sections, and the text of each parameter."""

    description: str
    parameters: Mapping[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Return the parts of a docstring."""
    lines = cleandoc(text or "").splitlines()
    kept: list[str] = []
    found: dict[str, list[str]] = {}
    at = 0
    while at < len(lines):
        line = lines[at]
        if _GOOGLE.fullmatch(line) and _is_indented(lines, at + 1):
            end = _block_end(lines, at + 1)
            _collect(_google_entries(lines[at + 1 : end]), found)
        elif _NUMPY.fullmatch(line) and _is_underlined(lines, at):
            end = _section_end(lines, at + 2)
            _collect(_numpy_entries(lines[at + 2 : end]), found)
        elif (entry := _SPHINX.fullmatch(line)) or _SPHINX_TYPE.match(line):
            end = _block_end(lines, at + 1, blank_ends=True)
            if entry:
                found[entry[1]] = [entry[2], *lines[at + 1 : end]]
        else:
            kept.append(line)
            end = at + 1
        at = end
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return Docstring(description, {name: _join_lines(text) for name, text in found.items()})


def _collect(entries: Iterator[tuple[str, str]], found: dict[str, list[str]]) -> None:
    """Add entries; a line without a name continues the entry before it."""
    names: list[str] = []
    for name, text in entries:
        if name:
            names = [each.strip().lstrip("*") for each in name.split(",")]
        for each in names:
            found.setdefault(each, []).append(text)


def _google_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    margin = _indent(lines[0])
    for line in lines:
        entry = _GOOGLE_ENTRY.fullmatch(line.strip()) if _indent(line) == margin else None
        yield (entry[1], entry[2]) if entry else ("", line)


def _numpy_entries(lines: list[str]) -> Iterator[tuple[str, str]]:
    for line in lines:
        entry = _NUMPY_ENTRY.fullmatch(line) if line[:1].strip() else None
        yield (entry[1], "") if entry else ("", line)


def _is_indented(lines: list[str], at: int) -> bool:
    return at < len(lines) and _indent(lines[at]) > 0


def _is_underlined(lines: list[str], at: int) -> bool:
    return at + 1 < len(lines) and _UNDERLINE.fullmatch(lines[at + 1]) is not None


def _block_end(lines: list[str], at: int, *, blank_ends: bool = False) -> int:
    """Return the end of an indented block; blank lines belong to it unless they end it."""
    while at < len(lines) and (_indent(lines[at]) or not (lines[at].strip() or blank_ends)):
        at += 1
    return at


def _section_end(lines: list[str], at: int) -> int:
    while at < len(lines) and not (lines[at].strip() and _is_underlined(lines, at)):
        at += 1
    return at


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip()) if line.strip() else 0


def _join_lines(lines: list[str]) -> str:
    return " ".join(text for line in lines if (text := line.strip()))
