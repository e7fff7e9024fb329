"""What the settings that guard agents may be; a fault names an entry and never repeats it."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.config import Chat, Config, Credential
from holdfast.domain.errors import Code, Invalid
from tests.marks import each_case


def fault_of(**chat: Any) -> str:
    """Return what is wrong with a part of a configuration."""
    with pytest.raises(Invalid) as caught:
        Chat(**chat)
    assert caught.value.code is Code.CONFIG_INVALID
    return caught.value.message


@each_case("entry", ["git", "git status", "./build.sh", "grep 'a b' -- x*", "[", "git *"])
def test_a_command_is_words_as_in_a_shell(entry: str) -> None:
    assert Chat(allowed_commands=("ls", entry)).allowed_commands == ("ls", entry)


@each_case("entry", ["", "  ", "'open", "''", "a\\"])
def test_what_is_no_command_is_refused(entry: str) -> None:
    told = "entry 2 must be a command with its arguments, quoted as in a shell."

    assert fault_of(allowed_commands=("ls", entry)) == f"chat.allowed_commands {told}"
    assert fault_of(allowed_command_globs=("ls", entry)) == f"chat.allowed_command_globs {told}"


@each_case("entry", ["git log **", "ls *.py", "make t?st", "git", "a[b]"])
def test_a_glob_has_its_wildcards_behind_the_command(entry: str) -> None:
    assert Chat(allowed_command_globs=(entry,)).allowed_command_globs == (entry,)


@each_case("entry", ["*", "**", "g*t status", "?it", "'*'", "/usr/bin/* x"])
def test_a_glob_whose_command_is_a_wildcard_is_refused(entry: str) -> None:
    assert fault_of(allowed_command_globs=(entry,)) == (
        "chat.allowed_command_globs entry 1 must begin with a command name; only its "
        "arguments may contain * and ?."
    )


def test_any_rest_can_only_stand_last() -> None:
    assert fault_of(allowed_command_globs=("git ** x",)).endswith(
        "may have ** only as its last word."
    )


@each_case(
    "name",
    ["CI", "PWD", "DISPLAY", "MAKELEVEL", "HTTPS_PROXY", "KEYBOARD", "MONKEY", "AUTHOR", "ENVOY"],
)
def test_a_harmless_variable_can_be_passed_on(name: str) -> None:
    assert Chat(command_env=(name,)).command_env == (name,)


@each_case(
    "name",
    [
        "LD_PRELOAD",
        "ld_library_path",
        "DYLD_INSERT_LIBRARIES",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "GIT_SSH_COMMAND",
        "NODE_OPTIONS",
        "npm_config_registry",
        "BASH_ENV",
        "ENV",
        "IFS",
        "PERL5LIB",
        "PERL5OPT",
        "RUBYOPT",
        "JAVA_TOOL_OPTIONS",
        "_JAVA_OPTIONS",
        "XDG_CONFIG_HOME",
        "EDITOR",
        "HOLDFAST_HOME",
    ],
)
def test_a_variable_that_steers_what_is_loaded_is_refused(name: str) -> None:
    assert fault_of(command_env=("CI", name)) == (
        "chat.command_env entry 2 names a variable that controls what a program "
        "loads; it is never passed on."
    )


@each_case(
    "name",
    [
        "OPENAI_API_KEY",
        "GITHUB_TOKEN",
        "github_token",
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "MYSQL_PWD",
        "DB_PASS",
        "PGPASSWORD",
        "SSH_AUTH_SOCK",
        "DATABASE_URL",
        "SENTRY_DSN",
        "MY_CREDENTIALS",
        "KEY",
    ],
)
def test_a_variable_that_looks_like_a_credential_is_refused(name: str) -> None:
    assert fault_of(command_env=(name,)) == (
        "chat.command_env entry 1 names a variable that looks like a credential; it is never "
        "passed on."
    )


@each_case("name", ["", "A=B", "1A", "A B", "Ä", "A-B", "*"])
def test_what_is_no_name_of_a_variable_is_refused(name: str) -> None:
    told = fault_of(command_env=(name,))

    assert told == "chat.command_env entry 1 must be the name of an environment variable."


@each_case(
    "entry", ["a.example", "A.Example.", "a.example:8443", "xn--bcher-kva.example", "host", "1.a"]
)
def test_a_domain_is_a_host_perhaps_with_a_port(entry: str) -> None:
    assert Chat(allowed_domains=(entry,)).allowed_domains == (entry,)


@each_case(
    "entry",
    [
        "",
        "*.example",
        "https://a.example",
        "a.example/x",
        "u@a.example",
        "a..example",
        "-a.example",
        "a.example:",
        "a.example:0",
        "a.example:65536",
        "a.example:" + "9" * 5000,
        "a.example:٣",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f000001",
        "[::1]",
        "::1",
        "bücher.example",
        "a b",
        "a\n",
        "a" * 64,
    ],
)
def test_what_is_no_domain_is_refused(entry: str) -> None:
    told = fault_of(allowed_domains=("ok.example", entry))

    assert (
        told
        == "chat.allowed_domains entry 2 must be host or host:port, in xn--… form if not ASCII."
    )


@each_case("name", ["", " ", ".", "..", "a/b", "a\\b", "/"])
def test_a_linked_folder_is_a_name(name: str) -> None:
    told = fault_of(linked_dirs=(name,))

    assert told == "chat.linked_dirs entry 1 must be a folder name without a slash."


def test_a_root_is_absolute() -> None:
    told = fault_of(extra_roots=(Path("/a"), Path("b")))

    assert told == "chat.extra_roots entry 2 must be the absolute path of a folder."


@each_case(
    ("host", "secret", "told"),
    [
        ("a.example:1", "entry!", "must have a host name without a port"),
        ("127.0.0.1", "entry!", "must have a host name without a port"),
        ("a.example", "", "must have the name of a keychain entry as its secret"),
        ("a.example", "two words", "must have the name of a keychain entry as its secret"),
        ("a.example", "x" * 65, "must have the name of a keychain entry as its secret"),
        ("a.example", "ghp_0123456789", "must have the name of a keychain entry as its secret"),
        ("a.example", "sk-0123456789", "must have the name of a keychain entry as its secret"),
    ],
)
def test_a_credential_is_a_host_and_a_name_and_never_the_secret(
    host: str, secret: str, told: str
) -> None:
    with pytest.raises(Invalid) as caught:
        Config(home=Path("/"), credentials=(Credential(host=host, secret=secret),))

    assert told in caught.value.message
    assert not secret or secret not in str(caught.value.body())


def test_each_host_has_one_credential() -> None:
    twice = (
        Credential(host="a.example", secret="one"),
        Credential(host="A.example.", secret="two"),
    )

    with pytest.raises(Invalid, match=r"credentials must name each host once\."):
        Config(home=Path("/"), credentials=twice)
