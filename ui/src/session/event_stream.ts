/** Subscribes to the event stream of a session and delivers events in batches, once per frame. */
import type { StreamEvent } from "../api/types";
import { EVENT_TYPES, type Gap } from "./conversation";
import { asFields, asNumber, asText } from "./event_data";

/** Events that do not change the conversation, but make other queries stale. */
const OTHER_EVENT_TYPES = [
  "tool.approval_requested",
  "tool.approval_answered",
  "tool.requested",
  "tool.settled",
  "turn.paused",
  "turn.continued",
  "message.withdrawn",
  "session.compacted",
  "session.resumed",
];
const HIDDEN_FLUSH_MS = 250;
const RETRY_MS = 1_500;

export interface StreamHandlers {
  onEvents(events: readonly StreamEvent[]): void;
  onGap(gap: Gap, mustReload: boolean): void;
  onConnected(): void;
  onDisconnected(): void;
  /** The stream will not reconnect: open a new one. */
  onEnded(reason: string): void;
}

/** Open the stream after an event number; returns a function that closes it. */
export function openEventStream(sessionId: string, since: number, handlers: StreamHandlers): () => void {
  const source = new EventSource(`/v1/sessions/${sessionId}/events?since=${since}`);
  const batch = new EventBatch((events) => handlers.onEvents(events));
  let timer: ReturnType<typeof setTimeout> | undefined;
  for (const name of [...EVENT_TYPES, ...OTHER_EVENT_TYPES]) {
    source.addEventListener(name, (frame) => batch.add(JSON.parse(frame.data) as StreamEvent));
  }
  source.addEventListener("gap", (frame) => {
    const fields = asFields(JSON.parse(frame.data));
    batch.flush();
    handlers.onGap({ from: asNumber(fields?.["from"]), to: asNumber(fields?.["to"]) }, asText(fields?.["resync"]) !== "");
  });
  source.addEventListener("connected", () => handlers.onConnected());
  source.addEventListener("closing", (frame) => {
    const reason = asText(asFields(JSON.parse(frame.data))?.["reason"]);
    if (reason !== "deleted" && reason !== "revoked") return;
    source.close();
    handlers.onEnded(reason);
  });
  source.onerror = () => {
    batch.flush();
    handlers.onDisconnected();
    // EventSource reconnects after a network error, but not after an error response.
    if (source.readyState === EventSource.CLOSED) timer = setTimeout(() => handlers.onEnded("refused"), RETRY_MS);
  };
  return () => {
    clearTimeout(timer);
    batch.drop();
    source.close();
  };
}

/** Collects events until the next frame, to render at most once per frame. */
class EventBatch {
  private events: StreamEvent[] = [];
  private cancel: (() => void) | null = null;

  constructor(private readonly deliver: (events: readonly StreamEvent[]) => void) {}

  add(event: StreamEvent): void {
    this.events.push(event);
    this.cancel ??= runNextFrame(() => this.flush());
  }

  flush(): void {
    this.cancel?.();
    this.cancel = null;
    const events = this.events;
    this.events = [];
    if (events.length > 0) this.deliver(events);
  }

  drop(): void {
    this.events = [];
    this.cancel?.();
    this.cancel = null;
  }
}

function runNextFrame(callback: () => void): () => void {
  // A hidden page draws no frames.
  if (document.hidden) {
    const timer = setTimeout(callback, HIDDEN_FLUSH_MS);
    return () => clearTimeout(timer);
  }
  const frame = requestAnimationFrame(callback);
  return () => cancelAnimationFrame(frame);
}
