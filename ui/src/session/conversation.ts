/**
 * The state of a conversation, built from stored messages and from the events after them.
 *
 * All functions are pure, and applying an event twice changes nothing. So the stored messages and
 * the event stream may overlap anywhere, as long as there is no gap between them.
 */
import type { Message, StreamEvent, Usage } from "../api/types";
import { asFields, asNumber, asText, parseError, parsePlan, parseUsage, type PlanStep } from "./event_data";

/** Streamed text that is not a message yet. */
export interface Draft {
  readonly id: string;
  readonly turn: number;
  readonly model: string | null;
  readonly text: StreamedText;
  readonly reasoning: StreamedText;
  /** Its message is stored, but not loaded yet. */
  readonly isStored: boolean;
}

/** Text with its length as the server counts it, in Unicode scalar values. */
export interface StreamedText {
  readonly text: string;
  readonly length: number;
}

export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly willRetry: boolean;
}

/** Numbers of events that are no longer stored; the messages were loaded instead. */
export interface Gap {
  readonly from: number;
  readonly to: number;
}

export interface Conversation {
  /** A contiguous range of messages, by sequence number. */
  readonly messages: readonly Message[];
  /** The highest known sequence number of a message. */
  readonly tail: number;
  readonly drafts: readonly Draft[];
  /** Tool names by id of the calls that were started and have no result yet. */
  readonly startedCalls: Readonly<Record<string, string>>;
  readonly plan: readonly PlanStep[];
  readonly isRunning: boolean;
  /** The running turn, 0 if unknown; messages of later turns are queued. */
  readonly currentTurn: number;
  readonly failure: Failure | null;
  /** Token usage of the last request: how much of the context window is used. */
  readonly context: Usage | null;
  readonly model: string | null;
  readonly gap: Gap | null;
  readonly cursor: number;
}

export const EMPTY_CONVERSATION: Conversation = {
  messages: [],
  tail: 0,
  drafts: [],
  startedCalls: {},
  plan: [],
  isRunning: false,
  currentTurn: 0,
  failure: null,
  context: null,
  model: null,
  gap: null,
  cursor: 0,
};

const EMPTY_TEXT: StreamedText = { text: "", length: 0 };
// Messages kept in memory; others are loaded again when the user scrolls there.
export const MAX_MESSAGES = 400;

export function isAtTail(conversation: Conversation): boolean {
  return (conversation.messages.at(-1)?.sequence ?? 0) >= conversation.tail;
}

/** Add a page of messages; a page that is not adjacent to the loaded range replaces it. */
export function addMessages(before: Conversation, page: readonly Message[]): Conversation {
  const [first, last] = [page[0], page.at(-1)];
  if (first === undefined || last === undefined) return before;
  const known = before.messages;
  const isAdjacent =
    known.length > 0 &&
    first.sequence <= (known.at(-1)?.sequence ?? 0) + 1 &&
    last.sequence >= (known[0]?.sequence ?? 0) - 1;
  const messages = isAdjacent
    ? [
        ...known.filter((each) => each.sequence < first.sequence),
        ...page,
        ...known.filter((each) => each.sequence > last.sequence),
      ]
    : page;
  const ids = new Set(page.map((each) => each.id));
  const results = new Set(page.flatMap((each) => each.tool_call_id ?? []));
  return {
    ...before,
    messages,
    tail: Math.max(before.tail, last.sequence),
    drafts: before.drafts.some((each) => ids.has(each.id))
      ? before.drafts.filter((each) => !ids.has(each.id))
      : before.drafts,
    startedCalls: omitCalls(before.startedCalls, results),
  };
}

/** Drop messages at the other end, to bound memory and the number of rows. */
export function trimMessages(before: Conversation, end: "first" | "last"): Conversation {
  if (before.messages.length <= MAX_MESSAGES) return before;
  const messages = end === "last" ? before.messages.slice(-MAX_MESSAGES) : before.messages.slice(0, MAX_MESSAGES);
  return { ...before, messages };
}

export function applyEvents(before: Conversation, events: readonly StreamEvent[]): Conversation {
  return events.reduce(applyEvent, before);
}

type EventHandler = (before: Conversation, data: StreamEvent["data"]) => Conversation;

const EVENT_HANDLERS: Readonly<Record<string, EventHandler>> = {
  "session.started": (before, data) => ({ ...before, isRunning: true, currentTurn: asNumber(data["turn"]), failure: null }),
  "session.completed": endTurn,
  "session.failed": endTurn,
  "step.started": startStep,
  "step.generating": addDelta,
  "step.generated": (before, data) => ({ ...before, context: parseUsage(data["usage"]) ?? before.context }),
  "step.error": failStep,
  "message.created": markStored,
  "tool.started": (before, data) => {
    const id = asText(data["tool_call_id"]);
    return hasResult(before, id)
      ? before
      : { ...before, startedCalls: { ...before.startedCalls, [id]: asText(data["name"]) } };
  },
  "tool.completed": (before, data) => ({
    ...before,
    startedCalls: omitCalls(before.startedCalls, new Set([asText(data["tool_call_id"])])),
  }),
  "plan.changed": (before, data) => ({ ...before, plan: parsePlan(data["steps"]) }),
};

/** The event types that change a conversation; others are ignored. */
export const EVENT_TYPES: readonly string[] = Object.keys(EVENT_HANDLERS);

export function applyEvent(before: Conversation, event: StreamEvent): Conversation {
  const handler = EVENT_HANDLERS[event.event_type];
  const after = handler === undefined ? before : handler(before, event.data);
  return { ...after, cursor: Math.max(before.cursor, event.sequence) };
}

export function applyGap(before: Conversation, gap: Gap, mustReload: boolean): Conversation {
  const cursor = Math.max(before.cursor, gap.to);
  // The deltas in the gap are unknown, so incomplete drafts are dropped.
  return mustReload ? { ...before, gap, drafts: [], cursor } : { ...before, cursor };
}

function startStep(before: Conversation, data: StreamEvent["data"]): Conversation {
  const id = asText(data["message_id"]);
  const model = asText(data["model"]) || null;
  const running = { ...before, isRunning: true, currentTurn: asNumber(data["turn"]), model };
  if (hasMessage(before, id)) return running;
  const draft: Draft = {
    id,
    turn: asNumber(data["turn"]),
    model,
    text: EMPTY_TEXT,
    reasoning: EMPTY_TEXT,
    isStored: false,
  };
  // A new step replaces the drafts of failed attempts.
  return { ...running, drafts: [...before.drafts.filter((each) => each.isStored && each.id !== id), draft] };
}

function addDelta(before: Conversation, data: StreamEvent["data"]): Conversation {
  const id = asText(data["message_id"]);
  if (hasMessage(before, id)) return before;
  const channel = data["channel"] === "reasoning" ? "reasoning" : "text";
  const found = before.drafts.find((each) => each.id === id);
  const draft = found ?? {
    id,
    turn: asNumber(data["turn"]),
    model: before.model,
    text: EMPTY_TEXT,
    reasoning: EMPTY_TEXT,
    isStored: false,
  };
  const updated = { ...draft, [channel]: appendText(draft[channel], asNumber(data["offset"]), asText(data["delta"])) };
  return {
    ...before,
    drafts: found ? before.drafts.map((each) => (each === found ? updated : each)) : [...before.drafts, updated],
  };
}

/** Append a delta at its offset; text that is already there is skipped. */
function appendText(before: StreamedText, offset: number, delta: string): StreamedText {
  const scalars = Array.from(delta);
  const end = offset + scalars.length;
  if (end <= before.length) return before;
  const newText = offset < before.length ? scalars.slice(before.length - offset).join("") : delta;
  const gapMark = offset > before.length ? "…" : "";
  return { text: before.text + gapMark + newText, length: end };
}

function markStored(before: Conversation, data: StreamEvent["data"]): Conversation {
  const id = asText(data["message_id"]);
  const tail = Math.max(before.tail, asNumber(data["message_sequence"]));
  const drafts = before.drafts.some((each) => each.id === id && !each.isStored)
    ? before.drafts.map((each) => (each.id === id ? { ...each, isStored: true } : each))
    : before.drafts;
  return { ...before, tail, drafts };
}

function failStep(before: Conversation, data: StreamEvent["data"]): Conversation {
  const willRetry = data["will_retry"] === true;
  const failure = { ...parseError(data["error"]), willRetry };
  // A retry starts from the beginning, so the text of this attempt is dropped.
  return { ...before, failure, drafts: willRetry ? before.drafts.filter((each) => each.isStored) : before.drafts };
}

function endTurn(before: Conversation, data: StreamEvent["data"]): Conversation {
  const hasFailed = data["stop_reason"] !== "aborted" && asFields(data["error"]) !== null;
  return {
    ...before,
    isRunning: data["more_turns"] === true,
    currentTurn: 0,
    // A turn that the user stopped has not failed, even if its last step reports an error.
    failure: hasFailed ? { ...parseError(data["error"]), willRetry: false } : null,
    drafts: before.drafts.filter((each) => each.isStored),
    startedCalls: {},
  };
}

function hasMessage(conversation: Conversation, id: string): boolean {
  return conversation.messages.some((each) => each.id === id);
}

function hasResult(conversation: Conversation, callId: string): boolean {
  return conversation.messages.some((each) => each.tool_call_id === callId);
}

function omitCalls(calls: Conversation["startedCalls"], ids: ReadonlySet<string>): Conversation["startedCalls"] {
  if (!Object.keys(calls).some((id) => ids.has(id))) return calls;
  return Object.fromEntries(Object.entries(calls).filter(([id]) => !ids.has(id)));
}
