/** Where a page that is opened in the middle of things begins to listen. */
import type { Session, StreamEvent } from "../api/forms";
import { withEvents, type Conversation } from "./conversation";

/** What is looked for among the newest events before a page listens, and among how many. */
export const LOOKED_FOR = "session.started,session.completed,session.failed,step.started,step.generated,plan.changed";
export const LOOKED_AT = 1_000;

const TURNS = new Set(["session.started", "session.completed", "session.failed"]);
const STEPS = new Set(["session.started", "step.started"]);
const LASTING = new Set(["step.started", "step.generated", "plan.changed"]);

export interface Beginning {
  /** The number behind which the stream is asked for. */
  readonly since: number;
  /** What was told before that number and is still true. */
  readonly events: readonly StreamEvent[];
  readonly isRunning: boolean;
}

/**
 * Return where to listen: a turn that runs is heard from its last step on, because what was
 * streamed of it is in no message yet; otherwise everything is in the messages.
 */
export function beginningOf(session: Session, newest: readonly StreamEvent[]): Beginning {
  const known = newest.filter((each) => each.sequence <= session.last_event);
  const turn = known.findLast((each) => TURNS.has(each.event_type));
  // A turn whose beginning lies further back than we look, or one that only waits to begin.
  const isLong = session.last_event > LOOKED_AT && session.turn > session.settled;
  const isRunning = turn === undefined ? isLong : goesOn(turn);
  const step = known.findLast((each) => STEPS.has(each.event_type));
  const since = isRunning && step !== undefined ? step.sequence - 1 : session.last_event;
  const events = known.filter((each) => LASTING.has(each.event_type) && each.sequence <= since);
  return { since, events, isRunning };
}

function goesOn(event: StreamEvent): boolean {
  return event.event_type === "session.started" || event.data["more_turns"] === true;
}

/** Return the conversation with what its beginning says; of that, nothing is being said now. */
export function begun(before: Conversation, { since, events, isRunning }: Beginning): Conversation {
  const after = withEvents(before, events);
  return { ...after, isRunning, playing: 0, drafts: before.drafts, cursor: since };
}
