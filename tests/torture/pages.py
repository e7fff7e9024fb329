"""A foreign web server with a page that tries everything a browser lets it try."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

# Each way returns what the page got to see of the answer, or nothing.
WAYS = """
const within = (promise) =>
  Promise.race([promise, new Promise((done) => setTimeout(() => done(null), 10000))]);
const loaded = (element, place) => new Promise((done) => {
  element.onload = () => done(element.naturalWidth === 0 ? null : element);
  element.onerror = () => done(null);
  place.append(element);
});
const made = (tag, fields) => Object.assign(document.createElement(tag), fields);
const readable = async (answer) => (answer.type === "opaque" ? null : await answer.text());
const ways = {
  fetch: async (url) => readable(await fetch(url, { credentials: "include" })),
  quiet: async (url) => readable(await fetch(url, { credentials: "include", mode: "no-cors" })),
  asked: async (url) => readable(await fetch(url, { headers: { "x-asked": "1" } })),
  redirect: async (url) =>
    readable(await fetch("/redirect?to=" + encodeURIComponent(url), { credentials: "include" })),
  stream: (url) => new Promise((done) => {
    const source = new EventSource(url, { withCredentials: true });
    source.onopen = () => { source.close(); done("opened"); };
    source.onerror = () => source.readyState === EventSource.CLOSED && done(null);
  }),
  socket: (url) => new Promise((done) => {
    const socket = new WebSocket(url.replace("http", "ws"));
    socket.onopen = () => done("opened");
    socket.onerror = () => done(null);
  }),
  image: async (url) => (await loaded(made("img", { src: url }), document.body)) && "drawn",
  script: async (url) => (await loaded(made("script", { src: url }), document.head)) && "run",
  style: async (url) => {
    const link = made("link", { rel: "stylesheet", href: url });
    return (await loaded(link, document.head)) && "applied";
  },
  frame: async (url) => {
    const frame = made("iframe", { src: url });
    await loaded(frame, document.body);
    try { return frame.contentDocument.body.innerText || null; } catch { return null; }
  },
  worker: (url) => new Promise((done) => {
    const source = `onmessage = async (event) => {
      let seen = null;
      try { importScripts(event.data); seen = "run"; } catch {}
      try { seen = await (await fetch(event.data, { credentials: "include" })).text(); } catch {}
      postMessage(seen);
    };`;
    const worker = new Worker(URL.createObjectURL(new Blob([source])));
    worker.onmessage = (event) => done(event.data);
    worker.onerror = () => done(null);
    worker.postMessage(url);
  }),
  post: async (url, body) => readable(await fetch(url, {
    method: "POST", credentials: "include", body, headers: { "content-type": "text/plain" },
  })),
  json: async (url, body) => readable(await fetch(url, {
    method: "POST", credentials: "include", body, headers: { "content-type": "application/json" },
  })),
  beacon: async (url, body) => { navigator.sendBeacon(url, body); return null; },
  form: async (url, body) => {
    const frame = made("iframe", { name: "target" + Math.random() });
    document.body.append(frame);
    const form = made("form", {
      action: url, method: "post", enctype: "text/plain", target: frame.name,
    });
    // As text it is one object of JSON: what the name begins, the value ends.
    form.append(made("input", { name: body.slice(0, -1) + ',"x":"', value: '"}' }));
    document.body.append(form);
    form.submit();
    await new Promise((done) => setTimeout(done, 1000));
    try { return frame.contentDocument.body.innerText || null; } catch { return null; }
  },
};
"""
ATTACK = (
    WAYS
    + """
(async () => {
  const { reads, changes } = %s;
  const attempt = async (way, url, body) => {
    let seen = null;
    try { seen = await within(ways[way](url, body)); } catch {}
    return { way, url, seen };
  };
  const tries = [];
  // One way after the other: a browser has few connections to a server, and waits for one silently.
  for (const way of ["fetch", "quiet", "asked", "redirect", "stream", "socket", "image",
                     "script", "style", "frame", "worker"]) {
    for (const url of reads) tries.push(await attempt(way, url));
  }
  for (const way of ["post", "json", "beacon", "form"]) {
    tries.push(...await Promise.all(changes.map(([url, body]) => attempt(way, url, body))));
  }
  return tries;
})()
"""
)


def attack(reads: list[str], changes: list[tuple[str, str]]) -> str:
    """Return the script that tries every way to every address."""
    return ATTACK.replace("%s", json.dumps({"reads": reads, "changes": changes}))


@asynccontextmanager
async def foreign_site() -> AsyncIterator[int]:
    """Serve an empty page, and redirects to wherever one likes; gives the port."""
    server = await asyncio.start_server(_answer, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await server.wait_closed()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        parts = urlsplit(head.split(" ")[1])
        to = parse_qs(parts.query).get("to")
        status, more = ("302 Found", f"location: {to[0]}\r\n") if to else ("200 OK", "")
        body = "<!doctype html><title>foreign</title><body></body>"
        writer.write(
            f"HTTP/1.1 {status}\r\n{more}content-type: text/html\r\nconnection: close\r\n"
            f"content-length: {len(body)}\r\n\r\n{body}".encode()
        )
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()


def seen(tries: list[dict[str, Any]]) -> list[str]:
    """Return each way that showed the page anything."""
    return [f"{each['way']} {each['url']}: {each['seen'][:80]}" for each in tries if each["seen"]]
