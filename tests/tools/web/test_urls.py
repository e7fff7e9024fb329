"""URLs: read in one way, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.tools import Grant
from holdfast.tools.tool import ToolFailure
from holdfast.tools.web.ssrf import (
    Url,
    allowed_domains,
    is_local_name,
    read_local_url,
    read_url,
    require_domain,
)
from tests.marks import each_case


def code(text: str) -> str:
    with pytest.raises(ToolFailure) as refused:
        read_url(text)
    return str(refused.value.code)


@each_case(
    ("text", "read"),
    [
        ("https://example.com", "https://example.com/"),
        ("HTTPS://EXAMPLE.com.:443/a/../b?c#d", "https://example.com/a/../b?c"),
        ("https://example.com?q=1", "https://example.com/?q=1"),
        ("https://example.com:8443/%2e%2E/ä", "https://example.com:8443/%2e%2E/%C3%A4"),
        ('https://example.com/a"<>^`{|}', "https://example.com/a%22%3C%3E%5E%60%7B%7C%7D"),
        ("https://bücher.example/", "https://xn--bcher-kva.example/"),
        ("https://BÜCHER.example/", "https://xn--bcher-kva.example/"),
        ("https://xn--strae-oqa.example/", "https://xn--strae-oqa.example/"),
        ("https://example.com/@evil.example", "https://example.com/@evil.example"),
        ("https://example.com#@evil.example/", "https://example.com/"),
        ("https://[2606:4700::1111]:444/", "https://[2606:4700::1111]:444/"),
    ],
)
def test_a_plain_address_is_built_anew_from_what_was_read(text: str, read: str) -> None:
    assert read_url(text).text == read


def test_an_address_is_read_into_its_parts() -> None:
    url = read_url("https://example.com:8443/a?b")

    assert url == Url(scheme="https", host="example.com", port=8443, target="/a?b")
    assert url.origin == ("https", "example.com", 8443)


@each_case(
    "text",
    [
        "",
        "example.com",
        "//example.com/",
        "https:example.com",
        "https:/example.com",
        "https:///example.com",
        "https://",
        "https://?",
        "http://example.com/",
        "ftp://example.com/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "gopher://example.com/",
        "https://user@example.com/",
        "https://user:word@example.com/",
        "https://@example.com/",
        "https://example.com@evil.example/",
        "https://example.com:80@evil.example/",
        "https://example.com\\@evil.example/",
        "https:\\\\example.com\\",
        "https://example.com/a\\b",
        " https://example.com/",
        "https://example.com/ ",
        "https://exa mple.com/",
        "https://example.com/a b",
        "https://example.com/\n",
        "https://exam\tple.com/",
        "https://exam\x00ple.com/",
        "https://example.com\x7f/",
        "https://example\u200b.com/",
        "https://example\u202e.com/",
        "https://example\u00ad.com/",
        "https://example.com\u3000/",
        "https://ex%61mple.com/",
        "https://%31%32%37.0.0.1/",
        "https://example.com%00.evil.example/",
        "https://example.com:/",
        "https://example.com:0/",
        "https://example.com:0443/",
        "https://example.com:65536/",
        "https://example.com:443443/",
        "https://example.com:+443/",
        "https://example.com:٤٤٣/",
        "https://example.com:443:443/",
        "https://.example.com/",
        "https://example..com/",
        "https://example.com../",
        "https://./",
        "https://-example.com/",
        "https://example-.com/",
        "https://exa_mple.com/",
        "https://exa*mple.com/",
        "https://example.com,evil.example/",
        "https://example.com;evil.example/",
        "https://example.com&evil.example/",
        "https://[::1/",
        "https://::1/",
        "https://[::1]evil.example/",
        "https://evil.example[::1]/",
        "https://[example.com]/",
        "https://[]/",
        "https://[::1%25eth0]/",
        "https://[fe80::1%eth0]/",
        "https://[v1.x]/",
        "https://straße.example/",
        "https://ｅｘａｍｐｌｅ.com/",
        "https://example。com/",
        "https://①②⑦.⓪.⓪.①/",
        "https://١٢٧.٠.٠.١/",
        "https://xn--.example/",
        "https://xn--0.example/",
        "https://xn--a.example/",
        "https://a.xn--pokxncvks/",
        "https://\u212aube.example/",
        f"https://{'a' * 64}.com/",
        f"https://{'a.' * 127}com/",
        f"https://example.com/{'a' * 8200}",
    ],
)
def test_what_could_be_read_in_two_ways_is_refused(text: str) -> None:
    assert code(text) == "insecure_url"


def test_somebody_who_puts_a_password_into_a_url_is_told_so() -> None:
    with pytest.raises(ToolFailure, match="contains a user name or a password"):
        read_url("https://me:word@example.com/")


@each_case(
    "host",
    [
        "127.0.0.1",
        "2130706433",
        "0x7f000001",
        "0x7f.0x0.0x0.0x1",
        "0177.0.0.1",
        "017700000001",
        "127.1",
        "127.0.1",
        "0x7f.1",
        "0",
        "0x",
        "1.2.3.4.5",
        "example.1",
        "::1",
        "::ffff:127.0.0.1",
        "localhost",
        "a.localhost",
        "printer.local",
        "local",
        "metadata.google.internal",
        "internal",
        "router.home.arpa",
        "home.arpa",
    ],
)
def test_an_address_in_any_spelling_and_a_name_that_stays_at_home_are_known(host: str) -> None:
    assert is_local_name(host)


@each_case(
    "host", ["example.com", "1.example", "0x7f.example", "localhost.example", "notlocal", "a.arpa"]
)
def test_a_name_of_the_web_is_no_address(host: str) -> None:
    assert not is_local_name(host)


@each_case("host", ["127.0.0.1", "[::1]", "localhost", "0x7f.1", "8.8.8.8"])
def test_no_grant_can_name_an_address(host: str) -> None:
    with pytest.raises(ToolFailure) as refused:
        require_domain(read_url(f"https://{host}/"), [Grant(domains=(host,))])

    assert refused.value.code == "address_blocked"


def test_entries_that_name_no_host_allow_nothing() -> None:
    entries = ("*.example.com", "https://example.com", "example.com/", "a b", "", "example.com:x")

    assert allowed_domains([Grant(domains=entries)]) == frozenset()


def test_without_a_grant_nothing_is_allowed() -> None:
    assert allowed_domains([]) == frozenset()


@each_case(
    ("text", "expected"),
    [
        ("http://localhost:3000/mcp", "http://localhost:3000/mcp"),
        ("http://127.0.0.1/", "http://127.0.0.1/"),
        ("https://[::1]:8443/", "https://[::1]:8443/"),
        ("http://example.com/", None),
        ("https://example.com/", None),
        ("http://127.1/", None),
        ("http://0.0.0.0/", None),
        ("http://a.localhost/", None),
        ("http://[::ffff:127.0.0.1]/", None),
    ],
)
def test_an_address_of_this_machine_is_known(text: str, expected: str | None) -> None:
    local = read_local_url(text)

    assert (local.text if local else None) == expected


@given(
    st.text(alphabet=st.sampled_from("a.:@/\\?#%[]0x17 \t\u212a。%40%2f-_&;=,"), max_size=30),
    st.text(alphabet=st.sampled_from("a.:@/\\?#%[]0x17 \t\u212a。-_&;=,"), max_size=30),
)
def test_no_address_that_is_read_hides_another_host(before: str, after: str) -> None:
    try:
        url = read_url(f"https://{before}good.example{after}")
    except ToolFailure:
        return

    # Read again from what would be sent, it is the same; so nobody further on can disagree.
    assert read_url(url.text) == url
    assert url.host.isascii()
    assert not set(url.host) & set("@/\\?#% \t")
