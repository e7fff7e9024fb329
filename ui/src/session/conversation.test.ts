import { expect, test } from "vitest";

import type { Message, Session, StreamEvent } from "../api/types";
import { addMessages, applyEvents, applyGap, EMPTY_CONVERSATION, isAtTail, MAX_MESSAGES, trimMessages, type Conversation } from "./conversation";
import { applyStreamStart, findStreamStart, RECENT_EVENT_TYPES } from "./stream_start";

/** A session log as the server writes it: ordered events, and the message of some of them. */
class Log {
  readonly events: StreamEvent[] = [];
  readonly messages: { readonly at: number; readonly message: Message }[] = [];
  turn = 0;
  settled = 0;
  readonly turns: { readonly turn: number; readonly settled: number }[] = [{ turn: 0, settled: 0 }];

  addEvent(event_type: string, data: Record<string, unknown>): void {
    this.events.push({ sequence: this.events.length + 1, event_type, data, created_at: "2026-01-01T00:00:00.000000Z" });
    this.turns.push({ turn: this.turn, settled: this.settled });
  }

  addMessage(role: Message["role"], content: Record<string, unknown>, id = `m${this.messages.length + 1}`, call: string | null = null): void {
    const sequence = this.messages.length + 1;
    const message = { id, sequence, role, content, tool_call_id: call, turn: this.turn } as unknown as Message;
    this.messages.push({ at: this.events.length + 1, message });
    this.addEvent("message.created", { message_id: id, role, message_sequence: sequence, turn: this.turn });
  }

  addDeltas(id: string, channel: string, text: string, size: number): void {
    const scalars = Array.from(text);
    for (let offset = 0; offset < scalars.length; offset += size) {
      const delta = scalars.slice(offset, offset + size).join("");
      this.addEvent("step.generating", { turn: this.turn, step: 1, message_id: id, channel, offset, delta });
    }
  }

  /** The messages stored after an event. */
  record(at: number): Message[] {
    return this.messages.filter((each) => each.at <= at).map((each) => each.message);
  }

  session(at: number): Session {
    return { ...this.turns[at], last_event: at } as unknown as Session;
  }
}

const USAGE = { input_tokens: 7, cached_input_tokens: 1, output_tokens: 3, reasoning_tokens: 0 };

function sampleLog(): Log {
  const log = new Log();
  log.addEvent("session.opened", {});
  log.turn = 1;
  log.addMessage("user", { text: "hello" });
  log.addEvent("session.started", { turn: 1 });
  log.addEvent("step.started", { turn: 1, step: 1, message_id: "a1", model: "x:y", model_id: null });
  log.addDeltas("a1", "reasoning", "They greet 👋 me.", 5);
  log.addDeltas("a1", "text", "Hé 👩‍👩‍👧 — let me look.\n", 4);
  log.addEvent("step.generated", { turn: 1, step: 1, message_id: "a1", usage: USAGE });
  log.addMessage("assistant", { text: "Hé 👩‍👩‍👧 — let me look.\n" }, "a1");
  log.addMessage("tool_call", { id: "c1", name: "read_file", arguments: {} });
  log.addEvent("plan.changed", { turn: 1, steps: [{ content: "read", priority: "high", status: "completed" }] });
  log.addEvent("tool.started", { turn: 1, tool_call_id: "c1", name: "read_file", arguments: {} });
  log.addMessage("tool_result", { result: "x", error: null }, "r1", "c1");
  log.addEvent("tool.completed", { turn: 1, tool_call_id: "c1", name: "read_file", status: "ok" });
  log.turn = 2;
  log.addMessage("user", { text: "and then?" });
  log.turn = 1;
  log.addEvent("step.started", { turn: 1, step: 2, message_id: "a2", model: "x:y", model_id: null });
  log.addDeltas("a2", "text", "I was about to", 6);
  log.addEvent("step.error", { turn: 1, step: 2, error: { code: "provider_unavailable", message: "gone" }, will_retry: true });
  log.addEvent("step.started", { turn: 1, step: 3, message_id: "a3", model: "x:z", model_id: null });
  log.addDeltas("a3", "text", "Done.", 2);
  log.addEvent("step.generated", { turn: 1, step: 3, message_id: "a3", usage: USAGE });
  log.addMessage("assistant", { text: "Done." }, "a3");
  log.settled = 1;
  log.turn = 2;
  log.addEvent("session.completed", { turn: 1, stop_reason: "stop", closed: false, more_turns: true });
  log.addEvent("session.started", { turn: 2 });
  log.addEvent("step.started", { turn: 2, step: 1, message_id: "a4", model: "x:y", model_id: null });
  log.addDeltas("a4", "text", "Nothing mo", 3);
  log.addMessage("assistant", { text: "Nothing mo" }, "a4");
  log.addMessage("system", { text: "Stopped." });
  log.settled = 2;
  log.addEvent("session.completed", { turn: 2, stop_reason: "aborted", closed: false, more_turns: false });
  return log;
}

/** Open the page after event `cut`, load messages after event `read`, then receive events up to `end`. */
function openPage(log: Log, cut: number, read: number, end: number): Conversation {
  const names = RECENT_EVENT_TYPES.split(",");
  const recent = log.events.slice(0, cut).filter((each) => names.includes(each.event_type));
  const streamStart = findStreamStart(log.session(cut), recent);
  const started = applyStreamStart(addMessages(EMPTY_CONVERSATION, log.record(read)), streamStart);
  return catchUp(log, applyEvents(started, log.events.slice(streamStart.since, end)), end);
}

/** Load the announced messages, as the page does. */
function catchUp(log: Log, state: Conversation, end: number): Conversation {
  // A failure before the page was opened is not part of the initial state.
  return { ...addMessages(state, log.record(end)), failure: null };
}

test("the state is the same wherever the messages end and the stream starts", () => {
  const log = sampleLog();
  for (let end = 1; end <= log.events.length; end += 1) {
    const expected = catchUp(log, applyEvents(EMPTY_CONVERSATION, log.events.slice(0, end)), end);
    const text = JSON.stringify(expected);
    for (let cut = 0; cut <= end; cut += 1) {
      for (let read = cut; read <= end; read += 1) {
        const found = openPage(log, cut, read, end);
        // Compare as text first, for speed: there are tens of thousands of combinations.
        if (JSON.stringify(found) !== text) expect(found, `cut ${cut}, read ${read}, end ${end}`).toEqual(expected);
      }
    }
  }
});

test("a stopped turn is no failure, a failed turn is", () => {
  const log = new Log();
  log.addEvent("session.started", { turn: 1 });
  log.addEvent("step.error", { turn: 1, step: 1, error: { code: "aborted", message: "cut" }, will_retry: false });
  const ended = (stop_reason: string, code: string) => {
    const error = { code, message: "cut" };
    return [...log.events, { ...log.events[0], event_type: "session.completed", data: { turn: 1, stop_reason, error } } as StreamEvent];
  };
  expect(applyEvents(EMPTY_CONVERSATION, ended("aborted", "aborted")).failure).toBe(null);
  expect(applyEvents(EMPTY_CONVERSATION, ended("error", "unavailable")).failure).toMatchObject({ code: "unavailable" });
  expect(applyEvents(EMPTY_CONVERSATION, log.events)).toMatchObject({ isRunning: true, currentTurn: 1 });
});

test("applying any range of events again changes nothing", () => {
  const log = sampleLog();
  const end = log.events.length;
  const expected = catchUp(log, applyEvents(EMPTY_CONVERSATION, log.events), end);
  for (let from = 0; from < end; from += 1) {
    const again = catchUp(log, applyEvents(expected, log.events.slice(from)), end);
    expect(again, `from ${from}`).toEqual(expected);
  }
});

test("an overlapping delta adds only new text, with offsets in Unicode scalar values", () => {
  const log = new Log();
  log.addEvent("step.started", { turn: 1, step: 1, message_id: "a", model: "x" });
  log.addEvent("step.generating", { message_id: "a", channel: "text", offset: 0, delta: "👋👋b" });
  log.addEvent("step.generating", { message_id: "a", channel: "text", offset: 1, delta: "👋bcd" });
  log.addEvent("step.generating", { message_id: "a", channel: "text", offset: 9, delta: "z" });
  const { drafts } = applyEvents(EMPTY_CONVERSATION, log.events);
  expect(drafts.map((each) => each.text)).toEqual([{ text: "👋👋bcd…z", length: 10 }]);
});

test("adjacent pages are joined, and a page from elsewhere replaces them", () => {
  const rows = (from: number, to: number) =>
    Array.from({ length: to - from + 1 }, (_, at) => ({ id: `m${from + at}`, sequence: from + at, tool_call_id: null }) as unknown as Message);
  const numbers = (state: Conversation) => state.messages.map((each) => each.sequence);
  const start = addMessages(EMPTY_CONVERSATION, rows(10, 12));
  expect(numbers(addMessages(start, rows(8, 9)))).toEqual([8, 9, 10, 11, 12]);
  expect(numbers(addMessages(start, rows(11, 14)))).toEqual([10, 11, 12, 13, 14]);
  expect(numbers(addMessages(start, rows(20, 21)))).toEqual([20, 21]);
  expect(isAtTail(addMessages(start, rows(2, 3)))).toBe(false);
  const long = addMessages(EMPTY_CONVERSATION, rows(1, MAX_MESSAGES + 5));
  expect(numbers(trimMessages(long, "last")).slice(0, 1)).toEqual([6]);
  expect(isAtTail(trimMessages(long, "first"))).toBe(false);
});

test("a gap drops incomplete drafts", () => {
  const log = sampleLog();
  const streaming = applyEvents(EMPTY_CONVERSATION, log.events.slice(0, 8));
  expect(streaming.drafts).toHaveLength(1);
  expect(applyGap(streaming, { from: 9, to: 20 }, true)).toMatchObject({ drafts: [], gap: { from: 9, to: 20 }, cursor: 20 });
  expect(applyGap(streaming, { from: 9, to: 20 }, false)).toEqual({ ...streaming, cursor: 20 });
});
