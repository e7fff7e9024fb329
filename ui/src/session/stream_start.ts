/** Decides where the event stream starts when a session is opened. */
import type { Session, StreamEvent } from "../api/types";
import { applyEvents, type Conversation } from "./conversation";

/** The event types looked up before streaming, and how many recent events are searched. */
export const RECENT_EVENT_TYPES = "session.started,session.completed,session.failed,step.started,step.generated,plan.changed";
export const RECENT_EVENT_LIMIT = 1_000;

const TURN_EVENTS = new Set(["session.started", "session.completed", "session.failed"]);
const STEP_EVENTS = new Set(["session.started", "step.started"]);
const STATE_EVENTS = new Set(["step.started", "step.generated", "plan.changed"]);

export interface StreamStart {
  /** The stream starts after this event number. */
  readonly since: number;
  /** Earlier events that still determine the state. */
  readonly events: readonly StreamEvent[];
  readonly isRunning: boolean;
}

/**
 * Find the start of the stream: for a running turn the start of its last step, because the deltas
 * since then are in no message yet; otherwise the last event, because the messages are complete.
 */
export function findStreamStart(session: Session, recent: readonly StreamEvent[]): StreamStart {
  const known = recent.filter((each) => each.sequence <= session.last_event);
  const turn = known.findLast((each) => TURN_EVENTS.has(each.event_type));
  // The turn started before the searched events, or is still queued.
  const startedEarlier = session.last_event > RECENT_EVENT_LIMIT && session.turn > session.settled;
  const isRunning = turn === undefined ? startedEarlier : isTurnOpen(turn);
  const step = known.findLast((each) => STEP_EVENTS.has(each.event_type));
  const since = isRunning && step !== undefined ? step.sequence - 1 : session.last_event;
  const events = known.filter((each) => STATE_EVENTS.has(each.event_type) && each.sequence <= since);
  return { since, events, isRunning };
}

function isTurnOpen(event: StreamEvent): boolean {
  return event.event_type === "session.started" || event.data["more_turns"] === true;
}

/** Apply the earlier events; they add no drafts. */
export function applyStreamStart(before: Conversation, { since, events, isRunning }: StreamStart): Conversation {
  const after = applyEvents(before, events);
  return { ...after, isRunning, currentTurn: 0, drafts: before.drafts, cursor: since };
}
