"""A connection: answers find their questions, and everything keeps its place in the order."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.acp.rpc import connection as connections
from holdfast.acp.rpc.connection import AcpConnection, AnswerMarker, ConnectionLimits, Item
from holdfast.acp.rpc.framing import (
    CANCELLED,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    ConnectionLost,
    JsonRpcError,
    JsonRpcNotification,
    JsonRpcRequest,
    Junk,
    RequestRefused,
)
from tests.acp.raw_peer import Far, connected
from tests.stand_ins import PATIENCE

pytestmark = pytest.mark.anyio

End = tuple[AcpConnection, Far]


@pytest.fixture
async def end() -> AsyncIterator[End]:
    """Be connected."""
    async with connected() as both:
        yield both


async def take(connection: AcpConnection, count: int) -> list[Item]:
    """Return the next items."""
    incoming = connection.incoming()
    return [unsized(await anext(incoming)) for _ in range(count)]


async def take_all(connection: AcpConnection) -> list[Item]:
    """Return everything until the other side is gone."""
    return [unsized(each) async for each in connection.incoming()]


def unsized(item: Item) -> Item:
    """Return what was said, whatever the length of its line."""
    return replace(item, size=0) if isinstance(item, JsonRpcNotification) else item


async def taken_request(connection: AcpConnection) -> JsonRpcRequest:
    """Return the next item, which is a request."""
    (item,) = await take(connection, 1)
    assert isinstance(item, JsonRpcRequest)
    return item


async def spin() -> None:
    """Let everybody do what they can do now."""
    for _ in range(100):
        await asyncio.sleep(0)


async def test_an_answer_comes_back_to_who_asked(end: End) -> None:
    connection, far = end
    first = asyncio.create_task(connection.request("one", {"a": 1}))
    second = asyncio.create_task(connection.request("two", None))

    assert await far.hear() == {"jsonrpc": "2.0", "id": 1, "method": "one", "params": {"a": 1}}
    assert await far.hear() == {"jsonrpc": "2.0", "id": 2, "method": "two"}
    await far.say({"id": 2, "result": "2"}, {"id": 1, "result": "1"})

    assert (await first, await second) == ("1", "2")


async def test_an_error_is_raised_for_who_asked(end: End) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("one", {}))
    await far.hear()
    await far.say({"id": 1, "error": {"code": -32000, "message": "sign in", "data": [1]}})

    with pytest.raises(RequestRefused) as refused:
        await asking
    assert refused.value.error == JsonRpcError(-32000, "sign in", [1])


async def test_an_answer_that_comes_too_late_is_dropped(end: End) -> None:
    connection, far = end
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await connection.request("slow", {})
    asking = asyncio.create_task(connection.request("next", {}))
    await far.hear()
    await far.hear()

    await far.say({"id": 1, "result": "late"}, {"id": 2, "result": "in time"})

    assert await asking == "in time"


async def test_the_ids_of_both_sides_have_nothing_to_do_with_each_other(end: End) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("ours", {}))
    await far.hear()
    await far.say({"id": 1, "method": "theirs"})
    request = await taken_request(connection)
    await connection.answer(request, "to theirs")

    assert await far.hear() == {"jsonrpc": "2.0", "id": 1, "result": "to theirs"}
    await far.say({"id": 1, "result": "to ours"})
    assert await asking == "to ours"


@pytest.mark.parametrize("id", [0, None, "", "text", 1.5, {"a": 1}])
async def test_a_request_is_answered_with_the_id_it_came_with(end: End, id: Any) -> None:
    connection, far = end
    await far.say({"id": id, "method": "theirs"}, {"id": id, "method": "theirs"})
    first, second = await taken_request(connection), await taken_request(connection)

    await connection.refuse(second, JsonRpcError(-32601, "no"))
    await connection.answer(first, {})

    error = {"code": -32601, "message": "no"}
    assert await far.hear() == {"jsonrpc": "2.0", "id": id, "error": error}
    assert await far.hear() == {"jsonrpc": "2.0", "id": id, "result": {}}


async def test_answers_to_nothing_and_second_answers_are_dropped(end: End) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("one", {}))
    await far.hear()

    for id in (7, "1", True, [1], None, 0):
        await far.say({"id": id, "result": "wrong"})
    await far.say({"result": "wrong"}, {"id": 1.0, "result": "right"}, {"id": 1, "result": "twice"})
    again = asyncio.create_task(connection.request("two", {}))
    await far.hear()
    await far.say({"id": 2, "result": "next"})

    assert (await asking, await again) == ("right", "next")


@pytest.mark.parametrize("id", [{}, {"id": None}])
async def test_an_error_without_an_id_is_the_answer_to_the_only_question(
    end: End, id: dict[str, Any]
) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("one", {}))
    await far.hear()
    await far.say({**id, "error": {"code": -32700, "message": "cannot read"}})

    with pytest.raises(RequestRefused, match="-32700 cannot read"):
        await asking


async def test_an_error_without_an_id_is_dropped_where_two_wait(end: End) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("one", {}))
    await far.hear()
    future = await connection.begin("two", {})
    await far.say({"error": {"code": -32700, "message": "cannot read"}})
    await far.say({"id": 2, "result": 2}, {"id": 1, "result": 1})

    assert await asking == 1
    await take(connection, 1)
    assert future.result() == 2


async def test_however_the_bytes_are_cut_the_messages_are_the_same(end: End) -> None:
    connection, far = end
    await far.say_bytes(b'{"method":"a"}\r\n\r\n\n{"method":"b"}\n')
    long = b'{"method":"c","params":"' + b"x" * 1000 + b'"}\n'
    for start in range(0, len(long), 10):
        await far.say_bytes(long[start : start + 10])
        await asyncio.sleep(0)

    assert await take(connection, 3) == [
        JsonRpcNotification(method="a"),
        JsonRpcNotification(method="b"),
        JsonRpcNotification(method="c", params="x" * 1000),
    ]


async def test_what_is_no_message_is_skipped_and_an_array_is_refused(end: End) -> None:
    connection, far = end
    await far.say_bytes(b'Hello!\n"text"\n7\n\xff\xfe\n{"method":"\xff"}\n[{"method":"x"}]\n')
    await far.say({"method": "after"})

    assert await take(connection, 1) == [JsonRpcNotification(method="after")]
    error = {"code": INVALID_REQUEST, "message": "batches are not supported"}
    assert await far.hear() == {"jsonrpc": "2.0", "id": None, "error": error}


async def test_a_line_that_is_too_long_is_told_of_and_the_connection_lives(end: End) -> None:
    connection, far = end
    big = b'{"method":"big","params":"' + b"x" * (20 << 20) + b'"}\n'
    saying = asyncio.create_task(far.say_bytes(big + b"y" * (40 << 20) + b'\n{"method":"after"}\n'))
    first, junk, after = await take(connection, 3)
    await saying

    assert first == JsonRpcNotification(method="big", params="x" * (20 << 20))
    assert junk == Junk(kind="too_long", head=b"y" * 200, size=40 << 20)
    assert after == JsonRpcNotification(method="after")


async def test_a_begun_request_is_answered_after_all_that_came_before(end: End) -> None:
    connection, far = end
    future = await connection.begin("prompt", {})
    await far.say({"method": "u", "params": 1}, {"method": "u", "params": 2})
    await far.say({"id": 1, "result": "done"}, {"method": "u", "params": 3})
    await spin()

    found: list[Any] = []
    async for item in connection.incoming():
        found.append(
            (item.params if isinstance(item, JsonRpcNotification) else "answer", future.done())
        )
        if len(found) == 4:
            break
    assert found == [(1, False), (2, False), ("answer", True), (3, True)]
    assert future.result() == "done"


async def test_an_answer_that_is_next_can_be_taken_without_waiting(end: End) -> None:
    connection, far = end
    future = await connection.begin("prompt", {})
    # An array is answered as soon as it is read, so all before it was read by then.
    await far.say({"method": "u"}, {"id": 1, "result": "done"}, {"method": "u"}, [])
    heard = [await far.hear() for _ in range(2)]

    too_early = connection.is_answered(future)
    await take(connection, 1)
    is_next, answered, behind = (
        connection.is_answered(future),
        connection.next(),
        connection.is_answered(future),
    )

    assert (len(heard), too_early, is_next, behind) == (2, False, True, False)
    assert isinstance(answered, AnswerMarker)
    assert (answered.future is future, future.result()) == (True, "done")
    assert await take(connection, 1) == [JsonRpcNotification(method="u")]


async def test_an_error_to_a_begun_request_keeps_its_place_too(end: End) -> None:
    connection, far = end
    future = await connection.begin("prompt", {})
    await far.say({"method": "u"}, {"id": 1, "error": {"code": -32603, "message": "no"}})

    update, answered = await take(connection, 2)

    assert update == JsonRpcNotification(method="u")
    assert isinstance(answered, AnswerMarker)
    assert answered.future is future
    with pytest.raises(RequestRefused):
        future.result()


async def test_who_gave_up_waiting_does_no_harm(end: End) -> None:
    connection, far = end
    future = await connection.begin("prompt", {})
    future.cancel()
    await far.say({"id": 1, "result": "done"}, {"method": "u"})

    answered, update = await take(connection, 2)

    assert isinstance(answered, AnswerMarker)
    assert update == JsonRpcNotification(method="u")


async def test_5000_messages_of_all_kinds_keep_their_order_with_a_slow_reader() -> None:
    async with connected(bounds=ConnectionLimits(queued=16)) as (connection, far):
        future = await connection.begin("prompt", {})

        async def talk() -> None:
            for number in range(5000):
                request = {"id": number, "method": "ask"} if number % 50 == 7 else {}
                await far.say({"method": "u", "params": number} | request)
            await far.say({"id": 1, "result": 5000})

        talking = asyncio.create_task(talk())
        order = []
        async for item in connection.incoming():
            if isinstance(item, AnswerMarker):
                break
            assert isinstance(item, JsonRpcRequest | JsonRpcNotification)
            order.append(item.params)
            if isinstance(item, JsonRpcRequest):
                connection.handle(item, asyncio.sleep(0.001, {}))
            if len(order) % 100 == 0:
                await asyncio.sleep(0.001)
        await talking

        assert order == list(range(5000))
        assert future.result() == 5000


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bounds", [ConnectionLimits(queued=4), ConnectionLimits(queued_bytes=73)])
async def test_nothing_is_read_while_nobody_takes(bounds: ConnectionLimits) -> None:
    lines: list[bytes] = []
    async with connected(bounds=bounds, on_line=lines.append) as (connection, far):
        line = {"method": "u", "p": 1}
        saying = asyncio.create_task(far.say(*[line] * 30_000))
        await spin()

        assert len(lines) == 4
        assert not saying.done()
        assert len(await take(connection, 30_000)) == 30_000
        await saying


async def test_a_side_that_reads_nothing_is_given_up() -> None:
    async with connected(bounds=ConnectionLimits(write_seconds=0.05)) as (connection, _):
        future = await connection.begin("prompt", {})
        with pytest.raises(ConnectionLost) as lost:
            await connection.notify("big", "x" * (1 << 20))

        assert (lost.value.reason, connection.lost) == ("stuck", "stuck")
        (answered,) = await take_all(connection)
        assert isinstance(answered, AnswerMarker)
        with pytest.raises(ConnectionLost, match="stuck"):
            future.result()
        with pytest.raises(ConnectionLost, match="stuck"):
            await connection.notify("more", {})


async def test_who_stopped_listening_can_still_be_heard(end: End) -> None:
    connection, far = end
    far.stop_listening()
    await spin()
    with pytest.raises(ConnectionLost, match="ended"):
        await connection.notify("u", {})
    await far.say({"method": "last"})

    assert await take(connection, 1) == [JsonRpcNotification(method="last")]
    with pytest.raises(ConnectionLost, match="ended"):
        await connection.begin("prompt", {})


async def test_the_end_of_the_other_side_is_told_to_all_who_wait(end: End) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("one", {}))
    await far.hear()
    future = await connection.begin("prompt", {})
    await far.say({"method": "u"})
    await far.say_bytes(b'{"method":"last"}\n{"method":"cut o')
    far.stop_talking()

    with pytest.raises(ConnectionLost, match="ended"):
        await asking
    assert await connection.wait_ended() == "ended"
    first, last, answered = await take_all(connection)
    assert (first, last) == (JsonRpcNotification(method="u"), JsonRpcNotification(method="last"))
    assert isinstance(answered, AnswerMarker)
    with pytest.raises(ConnectionLost, match="ended"):
        future.result()
    with pytest.raises(ConnectionLost, match="ended"):
        await connection.request("again", {})
    assert await take_all(connection) == []


async def test_a_last_message_without_an_end_of_line_is_taken(end: End) -> None:
    connection, far = end
    await far.say_bytes(b'{"method":"a"}\n{"method":"b"}')
    far.stop_talking()

    assert await take_all(connection) == [
        JsonRpcNotification(method="a"),
        JsonRpcNotification(method="b"),
    ]


async def test_an_answer_that_waits_for_room_is_not_lost_with_the_other_side() -> None:
    async with connected(bounds=ConnectionLimits(queued=1)) as (connection, far):
        future = await connection.begin("prompt", {})
        await far.say({"method": "u"}, {"id": 1, "result": "done"})
        await spin()
        connection.lose("exited")

        update, answered = await take_all(connection)

        assert update == JsonRpcNotification(method="u")
        assert isinstance(answered, AnswerMarker)
        with pytest.raises(ConnectionLost, match="exited"):
            future.result()


async def test_the_65th_open_request_is_refused_and_room_comes_back(end: End) -> None:
    connection, far = end
    await far.say(*({"id": number, "method": "ask"} for number in range(65)))
    requests = [await taken_request(connection) for _ in range(64)]

    error = {"code": INTERNAL_ERROR, "message": "too many requests are pending"}
    assert await far.hear() == {"jsonrpc": "2.0", "id": 64, "error": error}
    assert connection.unanswered == 64
    await connection.answer(requests[3], {})
    await connection.answer(requests[3], "twice")
    await far.say({"id": 65, "method": "ask"})
    assert (await taken_request(connection)).id == 65
    assert await far.hear() == {"jsonrpc": "2.0", "id": 3, "result": {}}
    assert connection.unanswered == 64


async def fails() -> None:
    """Fail with words that are nobody's business."""
    raise ValueError("a secret path")


async def refuses() -> None:
    """Refuse politely."""
    raise RequestRefused(JsonRpcError(INVALID_PARAMS, "not this", {"why": 1}))


@pytest.mark.parametrize(
    ("work", "answer"),
    [
        (lambda: asyncio.sleep(0, {"a": 1}), {"result": {"a": 1}}),
        (fails, {"error": {"code": INTERNAL_ERROR, "message": "internal error"}}),
        (
            refuses,
            {"error": {"code": INVALID_PARAMS, "message": "not this", "data": {"why": 1}}},
        ),
    ],
)
async def test_a_handled_request_gets_an_answer_whatever_happens(
    end: End, work: Any, answer: dict[str, Any]
) -> None:
    connection, far = end
    await far.say({"id": "x", "method": "ask"})

    connection.handle(await taken_request(connection), work())

    assert await far.hear() == {"jsonrpc": "2.0", "id": "x", **answer}
    assert connection.unanswered == 0


async def test_the_other_side_can_take_its_request_back(end: End) -> None:
    connection, far = end
    await far.say(*({"id": number, "method": "ask"} for number in (1, 2, "1")))
    early, late, other = [await taken_request(connection) for _ in range(3)]
    connection.handle(early, asyncio.sleep(60))
    connection.handle(other, asyncio.sleep(60))
    cancels = [
        {"method": "$/cancel_request", "params": params}
        for params in ({"requestId": 1}, {"requestId": 2}, {"requestId": 9}, {}, None, [1])
    ]
    await far.say(*cancels, {"method": "after"})
    await take(connection, 1)
    connection.handle(late, asyncio.sleep(60))

    heard = [await far.hear(), await far.hear()]
    error = {"code": CANCELLED, "message": "cancelled"}
    assert heard == [{"jsonrpc": "2.0", "id": id, "error": error} for id in (1, 2)]
    assert connection.unanswered == 1


async def test_a_request_is_handled_once_and_not_after_it_was_answered(end: End) -> None:
    connection, far = end
    await far.say({"id": 1, "method": "ask"}, {"id": 2, "method": "ask"})
    first, second = await taken_request(connection), await taken_request(connection)
    connection.handle(first, asyncio.sleep(0, "once"))
    connection.handle(first, asyncio.sleep(0, "twice"))
    await connection.answer(second, "answered")
    connection.handle(second, asyncio.sleep(0, "again"))

    heard = [await far.hear(), await far.hear()]
    assert sorted(each["result"] for each in heard) == ["answered", "once"]
    await connection.aclose()
    assert await far.rest() == b""


async def test_work_for_a_side_that_is_gone_is_stopped(end: End) -> None:
    connection, far = end
    stopped = asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    await far.say({"id": 1, "method": "ask"}, {"id": 2, "method": "ask"})
    request, unhandled = await taken_request(connection), await taken_request(connection)
    connection.handle(request, work())
    await spin()
    far.stop_talking()
    await connection.wait_ended()

    await asyncio.wait_for(stopped.wait(), 10)
    await connection.answer(unhandled, {})
    assert connection.unanswered == 0


@pytest.mark.parametrize(
    "noise", [b"banner\n" * 100, b"x" * (1 << 20) + b"\n", b"[]\n" * 100, b'"a"\n' * 100]
)
async def test_too_much_noise_before_the_first_message_is_no_agent(noise: bytes) -> None:
    bounds = ConnectionLimits(noise_lines=100, noise_bytes=1 << 20)
    async with connected(bounds=bounds) as (connection, far):
        asking = asyncio.create_task(connection.request("initialize", {}))
        await far.hear()
        saying = asyncio.create_task(far.say_bytes(noise))

        with pytest.raises(ConnectionLost, match="noise"):
            await asking
        assert await connection.wait_ended() == "noise"
        saying.cancel()


async def test_noise_after_the_first_message_is_only_noise() -> None:
    bounds = ConnectionLimits(noise_lines=100, noise_bytes=1 << 20)
    async with connected(bounds=bounds) as (connection, far):
        await far.say_bytes(b"banner\n" * 99 + b'{"method":"a"}\n' + b"banner\n" * 200)
        await far.say({"method": "b"})

        assert await take(connection, 2) == [
            JsonRpcNotification(method="a"),
            JsonRpcNotification(method="b"),
        ]


async def test_each_line_is_shown_as_it_came() -> None:
    lines: list[bytes] = []
    async with connected(bounds=ConnectionLimits(line=20), on_line=lines.append) as (
        connection,
        far,
    ):
        before = connection.heard_at
        await far.say_bytes(b'{"method":"a"}\r\nbanner\n' + b"x" * 30 + b'\n{"method":"b"}\n')
        await take(connection, 3)

        assert lines == [b'{"method":"a"}\r', b"banner", b"x" * 30, b'{"method":"b"}']
        assert connection.heard_at >= before


async def test_our_own_closing_tells_all_who_wait_and_is_done_once(end: End) -> None:
    connection, far = end
    asking = asyncio.create_task(connection.request("one", {}))
    await far.hear()
    await connection.aclose()
    await connection.aclose()

    with pytest.raises(ConnectionLost, match="closed"):
        await asking
    with pytest.raises(ConnectionLost, match="closed"):
        await connection.notify("u", {})
    assert await far.rest() == b""


async def test_hanging_up_ends_what_we_say_and_not_what_we_hear(end: End) -> None:
    connection, far = end
    connection.hang_up()

    assert await far.rest() == b""
    await far.say({"method": "last words"})
    assert await take(connection, 1) == [JsonRpcNotification(method="last words")]
    with pytest.raises(ConnectionLost, match="closed"):
        await connection.notify("u", {})


async def test_last_words_are_waited_for_and_not_longer(end: End) -> None:
    connection, far = end
    await asyncio.wait_for(connection.listen(0.06), 10)
    assert connection.lost is None

    far.stop_talking()
    await asyncio.wait_for(connection.listen(3600), 10)
    assert connection.lost == "ended"


async def test_the_time_for_last_words_stands_still_while_nobody_takes_them() -> None:
    async with connected(bounds=ConnectionLimits(queued=1)) as (connection, far):
        await far.say({"method": "a"}, {"method": "b"}, {"method": "c"})
        listening = asyncio.create_task(connection.listen(0.05))
        await asyncio.wait([listening], timeout=0.3)

        assert not listening.done()
        assert len(await take(connection, 3)) == 3
        await asyncio.wait_for(listening, 10)


async def test_the_time_for_last_words_stands_still_while_they_come() -> None:
    async with connected() as (connection, far):
        listening = asyncio.create_task(connection.listen(0.05))
        for _ in range(5):
            await far.say({"method": "a"})
            await asyncio.sleep(0.03)

        assert len(await take(connection, 5)) == 5
        await asyncio.wait_for(listening, PATIENCE)


async def test_who_never_stops_talking_is_not_heard_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_DRAIN_BYTES", 1)
    async with connected() as (connection, far):

        async def talk() -> None:
            while True:
                await far.say({"method": "a"})
                await take(connection, 1)

        talking = asyncio.create_task(talk())
        await asyncio.wait_for(connection.listen(0.1), PATIENCE)
        talking.cancel()

        assert connection.lost is None


async def test_a_question_that_was_not_sent_is_not_waited_for() -> None:
    async with connected(bounds=ConnectionLimits(write_seconds=60)) as (connection, far):
        asking = asyncio.create_task(connection.begin("big", "x" * (1 << 20)))
        await spin()
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        other = asyncio.create_task(connection.request("one", {}))
        await far.hear()
        await far.hear()
        # It is the only one that waits, or this would be nobody's answer.
        await far.say({"error": {"code": 1, "message": "cannot read"}})

        with pytest.raises(RequestRefused):
            await other


async def test_answers_to_nothing_are_not_logged_without_end(
    end: End, caplog: pytest.LogCaptureFixture
) -> None:
    connection, far = end
    with caplog.at_level("INFO", logger="holdfast.acp.rpc.connection"):
        await far.say(*({"id": number, "result": 1} for number in range(100, 200)))
        await far.say({"method": "after"})
        await take(connection, 1)

    told = "a response without a matching request is dropped (id {})"
    assert [each.getMessage() for each in caplog.records] == [
        told.format(number) for number in range(100, 120)
    ]


async def test_a_message_tells_the_length_of_its_line(end: End) -> None:
    connection, far = end
    await far.say_bytes(b'{"method":"m"}\n{"id":1,"method":"mm"}\r\n')

    incoming = connection.incoming()
    items = [await anext(incoming) for _ in range(2)]

    assert [
        each.size for each in items if isinstance(each, JsonRpcNotification | JsonRpcRequest)
    ] == [14, 23]
