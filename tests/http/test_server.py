"""Listening on this machine only, and stopping without losing anything."""

import asyncio
import errno
import json
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.domain.errors import Code, Conflict, Denied, HoldfastError, Invalid
from holdfast.domain.tokens import Scope
from holdfast.http import server
from holdfast.http.server import Exposure, address_of, listen, url_of
from tests.http.sockets import Line, serving
from tests.marks import each_case
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

BEHIND_PROXY = Exposure(is_behind_proxy=True)


async def test_it_serves_from_the_moment_it_says_so_until_it_is_stopped(quiet: Holdfast) -> None:
    async with serving(quiet) as line:
        heard = await line.say(line.request("/healthz"), answers=1)

    assert (heard.statuses, json.loads(heard.body)) == ([200], {"status": "ok"})
    with pytest.raises(ConnectionRefusedError):
        await line.say(line.request("/healthz"))


async def test_it_speaks_tls_when_it_has_a_certificate(
    quiet: Holdfast, certificate: Exposure
) -> None:
    code = await quiet.tokens.sign_in_code(quiet.owner, Scope.ADMIN)
    async with serving(quiet, exposure=certificate) as line:
        heard = await line.say(line.request("/healthz"), answers=1)
        signed_in = await line.say(line.request(f"/sign-in?code={code}"), answers=1)
        plain = await Line(line.port).say(line.request("/healthz"))

    assert heard.statuses == [200]
    assert b"; HttpOnly; SameSite=Strict; Secure\r\n" in signed_in.raw
    assert (plain.statuses, plain.is_over) == ([], True)


def test_a_certificate_that_is_none_is_refused(tmp_path: Path, certificate: Exposure) -> None:
    (tmp_path / "bad.pem").write_text("nothing")
    wrong = [
        Exposure(certificate=tmp_path / "missing.pem"),
        Exposure(certificate=tmp_path / "bad.pem"),
        Exposure(certificate=certificate.certificate),
        Exposure(private_key=certificate.private_key),
        Exposure(certificate=certificate.certificate, private_key=_locked(tmp_path, certificate)),
    ]

    for exposure in wrong:
        with pytest.raises(Invalid) as refused:
            exposure.context()
        assert refused.value.code is Code.CONFIG_INVALID


async def test_a_stop_waits_for_an_answer_and_then_cuts_it_off(
    quiet: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "GRACE_SECONDS", 0)
    _, secret = await quiet.tokens.ensure_local()
    async with serving(quiet) as line:
        head = line.request(
            "/v1/agents",
            f"Authorization: Bearer {secret}",
            "Content-Type: application/json",
            "Content-Length: 2",
            "Expect: 100-continue",
            method="POST",
        )
        reader, writer = await asyncio.open_connection("127.0.0.1", line.port)
        writer.write(head)
        # From here on the request is being answered, and waits for its body.
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    async with asyncio.timeout(PATIENCE):
        answer = await reader.read()
    writer.close()
    await writer.wait_closed()

    assert b" 503 " in answer
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["error"] == "store_closed"


def test_a_port_in_use_is_a_conflict() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]

        with pytest.raises(Conflict) as refused:
            listen("127.0.0.1", port)

    assert (refused.value.code, refused.value.details) == (Code.PORT_IN_USE, {"port": port})


def test_a_port_that_may_not_be_used_is_denied(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(socket.socket, "bind", refused)
        with pytest.raises(Denied, match="Permission denied"):
            listen("127.0.0.1", 80)


@each_case("port", [-1, 65_536])
def test_a_port_out_of_range_is_invalid(port: int) -> None:
    with pytest.raises(Invalid):
        listen("127.0.0.1", port)


@each_case("host", ["0.0.0.0", "::", "192.168.1.5", "::ffff:127.0.0.1"])
def test_an_address_others_can_reach_is_denied(host: str) -> None:
    with pytest.raises(Denied) as refused:
        listen(host, 0)

    assert refused.value.code is Code.NOT_LOOPBACK


@each_case("host", ["example.org", "", "127.1", "0", "localhost.", "]127.0.0.1["])
def test_a_name_is_not_looked_up(host: str) -> None:
    with pytest.raises(HoldfastError) as refused:
        listen(host, 0, BEHIND_PROXY)

    assert (refused.value.code, type(refused.value)) == (Code.INVALID_INPUT, Invalid)


def test_behind_a_proxy_all_addresses_may_be_served() -> None:
    with listen("0.0.0.0", 0, BEHIND_PROXY) as listener:
        port = listener.getsockname()[1]

        assert url_of(listener) == f"http://127.0.0.1:{port}"
        assert address_of(listener) == ()


@each_case("host", ["127.0.0.1", "localhost", "127.0.0.2"])
def test_addresses_of_this_machine_are_fine(host: str) -> None:
    with listen(host, 0) as listener:
        number = "127.0.0.1" if host == "localhost" else host
        address = f"{number}:{listener.getsockname()[1]}"
        assert (url_of(listener), address_of(listener)) == (f"http://{address}", (address,))


def test_an_address_of_version_six_is_written_in_brackets() -> None:
    with listen("[::1]", 0) as listener:
        address = f"[::1]:{listener.getsockname()[1]}"
        assert (url_of(listener), address_of(listener)) == (f"http://{address}", (address,))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Exposure:
    """Make a certificate of our own."""
    if shutil.which("openssl") is None:
        pytest.fail("openssl makes the certificate of this test; install it")
    folder = tmp_path_factory.mktemp("tls")
    key, made = folder / "key.pem", folder / "certificate.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(key), "-out", str(made)),
        ],
        check=True,
        capture_output=True,
    )
    return Exposure(certificate=made, private_key=key)


def _locked(folder: Path, exposure: Exposure) -> Path:
    locked = folder / "locked.pem"
    subprocess.run(
        [
            *("openssl", "rsa", "-aes256", "-passout", "pass:secret"),
            *("-in", str(exposure.private_key), "-out", str(locked)),
        ],
        check=True,
        capture_output=True,
    )
    return locked
