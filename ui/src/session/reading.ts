/** Reads a session: what the first screen shows, and page by page what is scrolled to. */
import { server, told } from "../api/client";
import type { Message, Session, StreamEvent } from "../api/forms";
import { messageOf, type Place } from "../app/place";
import { beginningOf, LOOKED_AT, LOOKED_FOR, type Beginning } from "./beginning";

// Enough for the first screen; and for each that is scrolled to.
const FIRST = 8;
export const PAGE = 40;
export const LAST = Number.MAX_SAFE_INTEGER;
const AROUND = 20;

/** A stretch of the record, and whether more is known to follow it. */
export interface Page {
  readonly messages: readonly Message[];
  readonly isFollowed: boolean;
}

export interface Wanted {
  readonly after?: number;
  readonly before?: number;
  readonly limit: number;
}

export interface FirstScreen {
  readonly session: Session;
  readonly page: Page;
  readonly beginning: Beginning;
}

interface Early {
  readonly id: string;
  readonly at: number | null;
  readonly screen: Promise<FirstScreen>;
  known: FirstScreen | null;
}

let early: Early | null = null;

/** Ask for what an address will show, before there is anything to show it with; never fails. */
export async function readEarly(place: Place): Promise<void> {
  if (place.section !== "sessions" || place.id === null || place.query.has("time")) return;
  const at = messageOf(place);
  const begun: Early = { id: place.id, at, screen: read(place.id, at), known: null };
  const keep = (screen: FirstScreen) => {
    begun.known = screen;
  };
  early = begun;
  // Whoever waits for it is told what went wrong.
  await begun.screen.then(keep, () => undefined);
}

/** Return what was asked for early, where it is there: it need not be waited for. */
export function knownScreen(id: string, at: number | null): FirstScreen | null {
  return early?.id === id && early.at === at ? early.known : null;
}

/** Return what a session begins with on the screen: at its end, or around the message with a number. */
export function firstScreen(id: string, at: number | null): Promise<FirstScreen> {
  const begun = early;
  // Once: later it would be old.
  early = null;
  return begun?.id === id && begun.at === at ? begun.screen : read(id, at);
}

async function read(id: string, at: number | null): Promise<FirstScreen> {
  // First the session: whatever it knows of is in the messages that are read after it.
  const session = await told(server.GET("/v1/sessions/{session_id}", { params: { path: { session_id: id } } }));
  const wanted = at === null ? { before: LAST, limit: FIRST } : { after: Math.max(0, at - AROUND), limit: PAGE };
  const [page, newest] = await Promise.all([pageOf(id, wanted), newestOf(id, session.last_event)]);
  return { session, page, beginning: beginningOf(session, newest) };
}

export async function pageOf(id: string, query: Wanted): Promise<Page> {
  const asked = server.GET("/v1/sessions/{session_id}/messages", { params: { path: { session_id: id }, query } });
  const { data, next_cursor } = await told(asked);
  return { messages: data, isFollowed: query.after !== undefined && next_cursor !== null };
}

async function newestOf(id: string, head: number): Promise<readonly StreamEvent[]> {
  const query = { format: "json" as const, after: Math.max(0, head - LOOKED_AT), limit: LOOKED_AT, types: LOOKED_FOR };
  const page = await told(
    server.GET("/v1/sessions/{session_id}/events", {
      params: { path: { session_id: id }, query },
      headers: { accept: "application/json" },
    }),
  );
  return (page as { data: readonly StreamEvent[] }).data;
}
