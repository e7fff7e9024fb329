/**
 * A conversation as it is shown: messages are the record, events tell what has happened since.
 *
 * Everything here is a pure function, and hearing something twice changes nothing; so it does not
 * matter where the record ends and the stream begins, as long as nothing lies between them.
 */
import type { Message, StreamEvent, Usage } from "../api/forms";
import { asFields, asNumber, asText, errorOf, planOf, usageOf, type PlanStep } from "./event_data";

/** What is being said and is not a message yet. */
export interface Draft {
  readonly id: string;
  readonly turn: number;
  readonly model: string | null;
  readonly text: Said;
  readonly reasoning: Said;
  /** Its message is on disk and will be here in a moment. */
  readonly isStored: boolean;
}

/** Text with its length as the server counts it, in Unicode scalar values. */
export interface Said {
  readonly text: string;
  readonly length: number;
}

export interface Failure {
  readonly code: string;
  readonly message: string;
  readonly willRetry: boolean;
}

/** Numbers of events that will never come; what they told of was read from the record instead. */
export interface Gap {
  readonly from: number;
  readonly to: number;
}

export interface Conversation {
  /** One stretch without holes, in the order of the numbers. */
  readonly messages: readonly Message[];
  /** The highest number that a message is known to have. */
  readonly tail: number;
  readonly drafts: readonly Draft[];
  /** Calls that were started and have no result yet. */
  readonly startedCalls: Readonly<Record<string, string>>;
  readonly plan: readonly PlanStep[];
  readonly isRunning: boolean;
  /** The turn that is played now, as far as that is known; messages of later ones wait. */
  readonly playing: number;
  readonly failure: Failure | null;
  /** What the last request to a model held: how full its window is. */
  readonly context: Usage | null;
  readonly model: string | null;
  readonly gap: Gap | null;
  readonly cursor: number;
}

export const NOTHING: Conversation = {
  messages: [],
  tail: 0,
  drafts: [],
  startedCalls: {},
  plan: [],
  isRunning: false,
  playing: 0,
  failure: null,
  context: null,
  model: null,
  gap: null,
  cursor: 0,
};

const UNSAID: Said = { text: "", length: 0 };
// So many rows are kept; older ones are read again when somebody scrolls there.
export const KEPT_MOST = 400;

export function isAtTail(conversation: Conversation): boolean {
  return (conversation.messages.at(-1)?.sequence ?? 0) >= conversation.tail;
}

/** Add a page of the record; one that does not touch what is there takes its place. */
export function withMessages(before: Conversation, page: readonly Message[]): Conversation {
  const [first, last] = [page[0], page.at(-1)];
  if (first === undefined || last === undefined) return before;
  const known = before.messages;
  const touches =
    known.length > 0 &&
    first.sequence <= (known.at(-1)?.sequence ?? 0) + 1 &&
    last.sequence >= (known[0]?.sequence ?? 0) - 1;
  const messages = touches
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
    startedCalls: without(before.startedCalls, results),
  };
}

/** Keep the rows at one end, so that a long conversation takes no more room than a short one. */
export function trimmed(before: Conversation, end: "first" | "last"): Conversation {
  if (before.messages.length <= KEPT_MOST) return before;
  const messages = end === "last" ? before.messages.slice(-KEPT_MOST) : before.messages.slice(0, KEPT_MOST);
  return { ...before, messages };
}

export function withEvents(before: Conversation, events: readonly StreamEvent[]): Conversation {
  return events.reduce(withEvent, before);
}

type Hear = (before: Conversation, data: StreamEvent["data"]) => Conversation;

const HEARD: Readonly<Record<string, Hear>> = {
  "session.started": (before, data) => ({ ...before, isRunning: true, playing: asNumber(data["turn"]), failure: null }),
  "session.completed": ended,
  "session.failed": ended,
  "step.started": stepStarted,
  "step.generating": said,
  "step.generated": (before, data) => ({ ...before, context: usageOf(data["usage"]) ?? before.context }),
  "step.error": stepFailed,
  "message.created": created,
  "tool.started": (before, data) => {
    const id = asText(data["tool_call_id"]);
    return hasResult(before, id)
      ? before
      : { ...before, startedCalls: { ...before.startedCalls, [id]: asText(data["name"]) } };
  },
  "tool.completed": (before, data) => ({
    ...before,
    startedCalls: without(before.startedCalls, new Set([asText(data["tool_call_id"])])),
  }),
  "plan.changed": (before, data) => ({ ...before, plan: planOf(data["steps"]) }),
};

/** Every name that is listened for; names we do not know tell nothing we show. */
export const NAMES: readonly string[] = Object.keys(HEARD);

export function withEvent(before: Conversation, event: StreamEvent): Conversation {
  const hear = HEARD[event.event_type];
  const after = hear === undefined ? before : hear(before, event.data);
  return { ...after, cursor: Math.max(before.cursor, event.sequence) };
}

export function withGap(before: Conversation, gap: Gap, isMissed: boolean): Conversation {
  const cursor = Math.max(before.cursor, gap.to);
  // What was streamed meanwhile is not known, so nothing half-said is left standing.
  return isMissed ? { ...before, gap, drafts: [], cursor } : { ...before, cursor };
}

function stepStarted(before: Conversation, data: StreamEvent["data"]): Conversation {
  const id = asText(data["message_id"]);
  const model = asText(data["model"]) || null;
  const running = { ...before, isRunning: true, playing: asNumber(data["turn"]), model };
  if (isKnown(before, id)) return running;
  const draft: Draft = {
    id,
    turn: asNumber(data["turn"]),
    model,
    text: UNSAID,
    reasoning: UNSAID,
    isStored: false,
  };
  // A step that was tried before and said nothing that is kept gives way to this one.
  return { ...running, drafts: [...before.drafts.filter((each) => each.isStored && each.id !== id), draft] };
}

function said(before: Conversation, data: StreamEvent["data"]): Conversation {
  const id = asText(data["message_id"]);
  if (isKnown(before, id)) return before;
  const channel = data["channel"] === "reasoning" ? "reasoning" : "text";
  const found = before.drafts.find((each) => each.id === id);
  const draft = found ?? {
    id,
    turn: asNumber(data["turn"]),
    model: before.model,
    text: UNSAID,
    reasoning: UNSAID,
    isStored: false,
  };
  const grown = { ...draft, [channel]: appended(draft[channel], asNumber(data["offset"]), asText(data["delta"])) };
  return {
    ...before,
    drafts: found ? before.drafts.map((each) => (each === found ? grown : each)) : [...before.drafts, grown],
  };
}

/** Add a piece at its place; what is there already is not said again. */
function appended(before: Said, offset: number, delta: string): Said {
  const scalars = Array.from(delta);
  const end = offset + scalars.length;
  if (end <= before.length) return before;
  const fresh = offset < before.length ? scalars.slice(before.length - offset).join("") : delta;
  const hole = offset > before.length ? "…" : "";
  return { text: before.text + hole + fresh, length: end };
}

function created(before: Conversation, data: StreamEvent["data"]): Conversation {
  const id = asText(data["message_id"]);
  const tail = Math.max(before.tail, asNumber(data["message_sequence"]));
  const drafts = before.drafts.some((each) => each.id === id && !each.isStored)
    ? before.drafts.map((each) => (each.id === id ? { ...each, isStored: true } : each))
    : before.drafts;
  return { ...before, tail, drafts };
}

function stepFailed(before: Conversation, data: StreamEvent["data"]): Conversation {
  const willRetry = data["will_retry"] === true;
  const failure = { ...errorOf(data["error"]), willRetry };
  // Another model begins anew; what this one said is kept only if nobody says it better.
  return { ...before, failure, drafts: willRetry ? before.drafts.filter((each) => each.isStored) : before.drafts };
}

function ended(before: Conversation, data: StreamEvent["data"]): Conversation {
  const hasFailed = data["stop_reason"] !== "aborted" && asFields(data["error"]) !== null;
  return {
    ...before,
    isRunning: data["more_turns"] === true,
    playing: 0,
    // A turn that somebody stopped has not failed, whatever its last step told.
    failure: hasFailed ? { ...errorOf(data["error"]), willRetry: false } : null,
    drafts: before.drafts.filter((each) => each.isStored),
    startedCalls: {},
  };
}

function isKnown(conversation: Conversation, id: string): boolean {
  return conversation.messages.some((each) => each.id === id);
}

function hasResult(conversation: Conversation, callId: string): boolean {
  return conversation.messages.some((each) => each.tool_call_id === callId);
}

function without(calls: Conversation["startedCalls"], ids: ReadonlySet<string>): Conversation["startedCalls"] {
  if (!Object.keys(calls).some((id) => ids.has(id))) return calls;
  return Object.fromEntries(Object.entries(calls).filter(([id]) => !ids.has(id)));
}
