import { expect, test } from "vitest";

import type { Message, Session, StreamEvent } from "../api/forms";
import { beginningOf, begun, LOOKED_FOR } from "./beginning";
import { isAtTail, KEPT_MOST, NOTHING, trimmed, withEvents, withGap, withMessages, type Conversation } from "./conversation";

/** A log as a server writes it: events in order, and with some of them a message. */
class Log {
  readonly events: StreamEvent[] = [];
  readonly messages: { readonly at: number; readonly message: Message }[] = [];
  turn = 0;
  settled = 0;
  readonly turns: { readonly turn: number; readonly settled: number }[] = [{ turn: 0, settled: 0 }];

  event(event_type: string, data: Record<string, unknown>): void {
    this.events.push({ sequence: this.events.length + 1, event_type, data, created_at: "2026-01-01T00:00:00.000000Z" });
    this.turns.push({ turn: this.turn, settled: this.settled });
  }

  say(role: Message["role"], content: Record<string, unknown>, id = `m${this.messages.length + 1}`, call: string | null = null): void {
    const sequence = this.messages.length + 1;
    const message = { id, sequence, role, content, tool_call_id: call, turn: this.turn } as unknown as Message;
    this.messages.push({ at: this.events.length + 1, message });
    this.event("message.created", { message_id: id, role, message_sequence: sequence, turn: this.turn });
  }

  stream(id: string, channel: string, text: string, size: number): void {
    const scalars = Array.from(text);
    for (let offset = 0; offset < scalars.length; offset += size) {
      const delta = scalars.slice(offset, offset + size).join("");
      this.event("step.generating", { turn: this.turn, step: 1, message_id: id, channel, offset, delta });
    }
  }

  /** The record as it is read after an event. */
  record(at: number): Message[] {
    return this.messages.filter((each) => each.at <= at).map((each) => each.message);
  }

  session(at: number): Session {
    return { ...this.turns[at], last_event: at } as unknown as Session;
  }
}

const USAGE = { input_tokens: 7, cached_input_tokens: 1, output_tokens: 3, reasoning_tokens: 0 };

function aLog(): Log {
  const log = new Log();
  log.event("session.opened", {});
  log.turn = 1;
  log.say("user", { text: "hello" });
  log.event("session.started", { turn: 1 });
  log.event("step.started", { turn: 1, step: 1, message_id: "a1", model: "x:y", model_id: null });
  log.stream("a1", "reasoning", "They greet 👋 me.", 5);
  log.stream("a1", "text", "Hé 👩‍👩‍👧 — let me look.\n", 4);
  log.event("step.generated", { turn: 1, step: 1, message_id: "a1", usage: USAGE });
  log.say("assistant", { text: "Hé 👩‍👩‍👧 — let me look.\n" }, "a1");
  log.say("tool_call", { id: "c1", name: "read_file", arguments: {} });
  log.event("plan.changed", { turn: 1, steps: [{ content: "read", priority: "high", status: "completed" }] });
  log.event("tool.started", { turn: 1, tool_call_id: "c1", name: "read_file", arguments: {} });
  log.say("tool_result", { result: "x", error: null }, "r1", "c1");
  log.event("tool.completed", { turn: 1, tool_call_id: "c1", name: "read_file", status: "ok" });
  log.turn = 2;
  log.say("user", { text: "and then?" });
  log.turn = 1;
  log.event("step.started", { turn: 1, step: 2, message_id: "a2", model: "x:y", model_id: null });
  log.stream("a2", "text", "I was about to", 6);
  log.event("step.error", { turn: 1, step: 2, error: { code: "provider_unavailable", message: "gone" }, will_retry: true });
  log.event("step.started", { turn: 1, step: 3, message_id: "a3", model: "x:z", model_id: null });
  log.stream("a3", "text", "Done.", 2);
  log.event("step.generated", { turn: 1, step: 3, message_id: "a3", usage: USAGE });
  log.say("assistant", { text: "Done." }, "a3");
  log.settled = 1;
  log.turn = 2;
  log.event("session.completed", { turn: 1, stop_reason: "stop", closed: false, more_turns: true });
  log.event("session.started", { turn: 2 });
  log.event("step.started", { turn: 2, step: 1, message_id: "a4", model: "x:y", model_id: null });
  log.stream("a4", "text", "Nothing mo", 3);
  log.say("assistant", { text: "Nothing mo" }, "a4");
  log.say("system", { text: "Stopped." });
  log.settled = 2;
  log.event("session.completed", { turn: 2, stop_reason: "aborted", closed: false, more_turns: false });
  return log;
}

/** Open the page after event `cut`, read messages after event `read`, then listen up to `end`. */
function opened(log: Log, cut: number, read: number, end: number): Conversation {
  const names = LOOKED_FOR.split(",");
  const newest = log.events.slice(0, cut).filter((each) => names.includes(each.event_type));
  const beginning = beginningOf(log.session(cut), newest);
  const began = begun(withMessages(NOTHING, log.record(read)), beginning);
  return caughtUp(log, withEvents(began, log.events.slice(beginning.since, end)), end);
}

/** Read what was announced, as the page does. */
function caughtUp(log: Log, state: Conversation, end: number): Conversation {
  // How a step failed before the page was opened is told only to those who saw it.
  return { ...withMessages(state, log.record(end)), failure: null };
}

test("wherever the record ends and the stream begins, the whole is the same", () => {
  const log = aLog();
  for (let end = 1; end <= log.events.length; end += 1) {
    const whole = caughtUp(log, withEvents(NOTHING, log.events.slice(0, end)), end);
    const text = JSON.stringify(whole);
    for (let cut = 0; cut <= end; cut += 1) {
      for (let read = cut; read <= end; read += 1) {
        const found = opened(log, cut, read, end);
        // Compared as text first: there are tens of thousands of them.
        if (JSON.stringify(found) !== text) expect(found, `cut ${cut}, read ${read}, end ${end}`).toEqual(whole);
      }
    }
  }
});

test("a turn that somebody stopped has not failed, and one that failed has", () => {
  const log = new Log();
  log.event("session.started", { turn: 1 });
  log.event("step.error", { turn: 1, step: 1, error: { code: "aborted", message: "cut" }, will_retry: false });
  const ended = (stop_reason: string, code: string) => {
    const error = { code, message: "cut" };
    return [...log.events, { ...log.events[0], event_type: "session.completed", data: { turn: 1, stop_reason, error } } as StreamEvent];
  };
  expect(withEvents(NOTHING, ended("aborted", "aborted")).failure).toBe(null);
  expect(withEvents(NOTHING, ended("error", "unavailable")).failure).toMatchObject({ code: "unavailable" });
  expect(withEvents(NOTHING, log.events)).toMatchObject({ isRunning: true, playing: 1 });
});

test("hearing any stretch of events again changes nothing", () => {
  const log = aLog();
  const end = log.events.length;
  const whole = caughtUp(log, withEvents(NOTHING, log.events), end);
  for (let from = 0; from < end; from += 1) {
    const again = caughtUp(log, withEvents(whole, log.events.slice(from)), end);
    expect(again, `from ${from}`).toEqual(whole);
  }
});

test("a piece that overlaps what is there adds only what is new, counted as the server counts", () => {
  const log = new Log();
  log.event("step.started", { turn: 1, step: 1, message_id: "a", model: "x" });
  log.event("step.generating", { message_id: "a", channel: "text", offset: 0, delta: "👋👋b" });
  log.event("step.generating", { message_id: "a", channel: "text", offset: 1, delta: "👋bcd" });
  log.event("step.generating", { message_id: "a", channel: "text", offset: 9, delta: "z" });
  const { drafts } = withEvents(NOTHING, log.events);
  expect(drafts.map((each) => each.text)).toEqual([{ text: "👋👋bcd…z", length: 10 }]);
});

test("pages are joined where they touch, and one from elsewhere takes their place", () => {
  const rows = (from: number, to: number) =>
    Array.from({ length: to - from + 1 }, (_, at) => ({ id: `m${from + at}`, sequence: from + at, tool_call_id: null }) as unknown as Message);
  const numbers = (state: Conversation) => state.messages.map((each) => each.sequence);
  const start = withMessages(NOTHING, rows(10, 12));
  expect(numbers(withMessages(start, rows(8, 9)))).toEqual([8, 9, 10, 11, 12]);
  expect(numbers(withMessages(start, rows(11, 14)))).toEqual([10, 11, 12, 13, 14]);
  expect(numbers(withMessages(start, rows(20, 21)))).toEqual([20, 21]);
  expect(isAtTail(withMessages(start, rows(2, 3)))).toBe(false);
  const long = withMessages(NOTHING, rows(1, KEPT_MOST + 5));
  expect(numbers(trimmed(long, "last")).slice(0, 1)).toEqual([6]);
  expect(isAtTail(trimmed(long, "first"))).toBe(false);
});

test("after a gap nothing half-said is left standing", () => {
  const log = aLog();
  const speaking = withEvents(NOTHING, log.events.slice(0, 8));
  expect(speaking.drafts).toHaveLength(1);
  expect(withGap(speaking, { from: 9, to: 20 }, true)).toMatchObject({ drafts: [], gap: { from: 9, to: 20 }, cursor: 20 });
  expect(withGap(speaking, { from: 9, to: 20 }, false)).toEqual({ ...speaking, cursor: 20 });
});
