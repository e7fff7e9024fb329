/** Hears a session's stream, and says what it heard once for every picture that is drawn. */
import type { StreamEvent } from "../api/forms";
import { NAMES, type Gap } from "./conversation";
import { asFields, asNumber, asText } from "./event_data";

/** Told beside what the conversation shows: other things have to be read again. */
const BESIDE = ["tool.approval_requested", "tool.approval_answered", "tool.settled", "session.compacted", "session.resumed"];
const HIDDEN_MS = 250;
const AGAIN_MS = 1_500;

export interface Ear {
  heard(events: readonly StreamEvent[]): void;
  missed(gap: Gap, isMissed: boolean): void;
  connected(): void;
  lost(): void;
  /** The stream will not come back by itself: begin anew. */
  ended(reason: string): void;
}

/** Listen from behind a number on; returns what ends it. */
export function listen(sessionId: string, since: number, ear: Ear): () => void {
  const source = new EventSource(`/v1/sessions/${sessionId}/events?since=${since}`);
  const batch = new Batch((events) => ear.heard(events));
  let timer: ReturnType<typeof setTimeout> | undefined;
  for (const name of [...NAMES, ...BESIDE]) {
    source.addEventListener(name, (frame) => batch.add(JSON.parse(frame.data) as StreamEvent));
  }
  source.addEventListener("gap", (frame) => {
    const told = asFields(JSON.parse(frame.data));
    batch.flush();
    ear.missed({ from: asNumber(told?.["from"]), to: asNumber(told?.["to"]) }, asText(told?.["resync"]) !== "");
  });
  source.addEventListener("connected", () => ear.connected());
  source.addEventListener("closing", (frame) => {
    const reason = asText(asFields(JSON.parse(frame.data))?.["reason"]);
    if (reason !== "deleted" && reason !== "revoked") return;
    source.close();
    ear.ended(reason);
  });
  source.onerror = () => {
    batch.flush();
    ear.lost();
    // A refusal ends a stream for good; only a broken line is mended by the browser.
    if (source.readyState === EventSource.CLOSED) timer = setTimeout(() => ear.ended("refused"), AGAIN_MS);
  };
  return () => {
    clearTimeout(timer);
    batch.drop();
    source.close();
  };
}

/** Collects events until the next picture is drawn: nobody sees more often than that. */
class Batch {
  private events: StreamEvent[] = [];
  private cancel: (() => void) | null = null;

  constructor(private readonly tell: (events: readonly StreamEvent[]) => void) {}

  add(event: StreamEvent): void {
    this.events.push(event);
    this.cancel ??= soon(() => this.flush());
  }

  flush(): void {
    this.cancel?.();
    this.cancel = null;
    const events = this.events;
    this.events = [];
    if (events.length > 0) this.tell(events);
  }

  drop(): void {
    this.events = [];
    this.cancel?.();
    this.cancel = null;
  }
}

function soon(act: () => void): () => void {
  // No pictures are drawn of a page that nobody looks at.
  if (document.hidden) {
    const timer = setTimeout(act, HIDDEN_MS);
    return () => clearTimeout(timer);
  }
  const frame = requestAnimationFrame(act);
  return () => cancelAnimationFrame(frame);
}
