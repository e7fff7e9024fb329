/** Loads a session: the first screen, and further pages of messages. */
import { server, unwrap } from "../api/client";
import type { Message, Session, StreamEvent } from "../api/types";
import { parseMessageNumber, type Route } from "../app/route";
import { findStreamStart, RECENT_EVENT_LIMIT, RECENT_EVENT_TYPES, type StreamStart } from "./stream_start";

// The first page only has to fill the screen.
const FIRST_PAGE_SIZE = 8;
export const PAGE_SIZE = 40;
export const END = Number.MAX_SAFE_INTEGER;
const MESSAGES_BEFORE = 20;

/** A page of messages, and whether more are known to follow it. */
export interface Page {
  readonly messages: readonly Message[];
  readonly hasMore: boolean;
}

export interface PageQuery {
  readonly after?: number;
  readonly before?: number;
  readonly limit: number;
}

export interface FirstScreen {
  readonly session: Session;
  readonly page: Page;
  readonly streamStart: StreamStart;
}

interface Prefetch {
  readonly id: string;
  readonly at: number | null;
  readonly screen: Promise<FirstScreen>;
  loaded: FirstScreen | null;
}

let prefetched: Prefetch | null = null;

/** Start loading the session of a route before the page is rendered; never rejects. */
export async function prefetchSession(route: Route): Promise<void> {
  if (route.section !== "sessions" || route.id === null || route.query.has("time")) return;
  const at = parseMessageNumber(route);
  const prefetch: Prefetch = { id: route.id, at, screen: fetchFirstScreen(route.id, at), loaded: null };
  const keep = (screen: FirstScreen) => {
    prefetch.loaded = screen;
  };
  prefetched = prefetch;
  // The error is reported by `loadFirstScreen`.
  await prefetch.screen.then(keep, () => undefined);
}

/** Return the prefetched screen if it has arrived, without waiting. */
export function prefetchedScreen(id: string, at: number | null): FirstScreen | null {
  return prefetched?.id === id && prefetched.at === at ? prefetched.loaded : null;
}

/** Load the first screen of a session: its end, or the messages around a number. */
export function loadFirstScreen(id: string, at: number | null): Promise<FirstScreen> {
  const prefetch = prefetched;
  // Used once: later it would be stale.
  prefetched = null;
  return prefetch?.id === id && prefetch.at === at ? prefetch.screen : fetchFirstScreen(id, at);
}

async function fetchFirstScreen(id: string, at: number | null): Promise<FirstScreen> {
  // Load the session first: the messages, loaded later, then include everything up to its last event.
  const session = await unwrap(server.GET("/v1/sessions/{session_id}", { params: { path: { session_id: id } } }));
  const query = at === null ? { before: END, limit: FIRST_PAGE_SIZE } : { after: Math.max(0, at - MESSAGES_BEFORE), limit: PAGE_SIZE };
  const [page, recent] = await Promise.all([fetchMessages(id, query), fetchRecentEvents(id, session.last_event)]);
  return { session, page, streamStart: findStreamStart(session, recent) };
}

export async function fetchMessages(id: string, query: PageQuery): Promise<Page> {
  const request = server.GET("/v1/sessions/{session_id}/messages", { params: { path: { session_id: id }, query } });
  const { data, next_cursor } = await unwrap(request);
  return { messages: data, hasMore: query.after !== undefined && next_cursor !== null };
}

async function fetchRecentEvents(id: string, head: number): Promise<readonly StreamEvent[]> {
  const query = { format: "json" as const, after: Math.max(0, head - RECENT_EVENT_LIMIT), limit: RECENT_EVENT_LIMIT, types: RECENT_EVENT_TYPES };
  const page = await unwrap(
    server.GET("/v1/sessions/{session_id}/events", {
      params: { path: { session_id: id }, query },
      headers: { accept: "application/json" },
    }),
  );
  return (page as { data: readonly StreamEvent[] }).data;
}
