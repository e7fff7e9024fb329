"""Under which names the server is asked for, and from where its own pages ask."""

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Invalid
from holdfast.http.app import AppOptions, create_app
from holdfast.http.security import server_names
from tests.http.asgi import ask
from tests.http.test_app import well
from tests.marks import each_case

pytestmark = pytest.mark.anyio

LOCAL = {"127.0.0.1:8765", "localhost:8765", "[::1]:8765"}


def test_a_server_has_the_names_of_this_machine_at_its_port() -> None:
    names = server_names(8765)

    assert names.hosts == LOCAL
    assert names.origins == {f"http://{host}" for host in LOCAL}
    assert not names.is_secure("localhost:8765")


@each_case(("port", "has_tls"), [(80, False), (443, True)])
def test_at_the_usual_port_browsers_leave_it_out(port: int, has_tls: bool) -> None:
    names = server_names(port, has_tls=has_tls)

    assert {"localhost", f"localhost:{port}"} <= names.hosts
    assert names.is_secure("localhost") is has_tls


def test_a_name_that_was_given_holds_at_our_port_and_at_the_usual_one() -> None:
    names = server_names(8765, ["Box.Example", "other.example:99", "[fe80::1]"])

    assert names.hosts - LOCAL == {
        "box.example",
        "box.example:8765",
        "other.example:99",
        "[fe80::1]",
        "[fe80::1]:8765",
    }


def test_pages_behind_a_proxy_come_over_tls_and_those_of_this_machine_do_not() -> None:
    names = server_names(8765, ["box.example"], is_behind_proxy=True)

    assert names.origins == {
        *(f"http://{host}" for host in LOCAL),
        "https://box.example",
        "https://box.example:8765",
    }
    assert names.is_secure("BOX.example")
    assert not names.is_secure("127.0.0.1:8765")


@each_case("name", ["", "http://x", "x/y", "x:y", "a b", "x@y", "*", "é", "x:999999"])
def test_what_is_no_name_is_refused(name: str) -> None:
    with pytest.raises(Invalid):
        server_names(8765, [name])


@each_case("host", ["127.0.0.1:8765", "LOCALHOST:8765", "[::1]:8765", "box.example"])
async def test_a_server_answers_to_its_names(quiet: Holdfast, host: str) -> None:
    app = create_app(quiet, well, AppOptions(port=8765, names=("box.example",)))

    assert (await ask(app, "/healthz", headers=[(b"host", host.encode())])).status == 200
