/** Loads a session and keeps it up to date with its event stream. */
import { useCallback, useEffect, useReducer, useRef } from "react";

import { ApiError } from "../api/client";
import { queryClient } from "../api/queries";
import type { StreamEvent } from "../api/types";
import { addMessages, applyEvents, applyGap, EMPTY_CONVERSATION, isAtTail, trimMessages, type Conversation, type Gap } from "./conversation";
import { openEventStream, type StreamHandlers } from "./event_stream";
import { END, fetchMessages, loadFirstScreen, PAGE_SIZE, prefetchedScreen, type Page, type PageQuery } from "./session_loader";
import { applyStreamStart, type StreamStart } from "./stream_start";

const CATCH_UP_PAGE_SIZE = 1_000;

export type Connection = "connecting" | "live" | "disconnected";

export interface ConversationState {
  readonly conversation: Conversation;
  readonly connection: Connection;
  readonly error: ApiError | null;
  /** Whether new messages are loaded as they arrive; false while the user reads old ones. */
  readonly isFollowing: boolean;
}

type Action =
  | { type: "opened"; page: Page; streamStart: StreamStart }
  | { type: "pageLoaded"; page: Page; keep: "first" | "last" }
  | { type: "eventsReceived"; events: readonly StreamEvent[] }
  | { type: "gapReceived"; gap: Gap; mustReload: boolean }
  | { type: "connectionChanged"; connection: Connection }
  | { type: "failed"; error: ApiError };

const INITIAL_STATE: ConversationState = { conversation: EMPTY_CONVERSATION, connection: "connecting", error: null, isFollowing: true };

function addPage(before: Conversation, { messages, hasMore }: Page): Conversation {
  const last = messages.at(-1)?.sequence ?? 0;
  return addMessages({ ...before, tail: Math.max(before.tail, hasMore ? last + 1 : last) }, messages);
}

function reduce(before: ConversationState, action: Action): ConversationState {
  const { conversation } = before;
  switch (action.type) {
    case "opened": {
      const after = applyStreamStart({ ...addPage(conversation, action.page), drafts: [] }, action.streamStart);
      return { ...before, conversation: after, error: null, isFollowing: isAtTail(after) };
    }
    case "pageLoaded": {
      const after = trimMessages(addPage(conversation, action.page), action.keep);
      // Keep following, even if more messages arrived while this page was loading.
      const isFollowing = isAtTail(after) || (before.isFollowing && action.keep === "last");
      return { ...before, conversation: after, isFollowing };
    }
    case "eventsReceived":
      return { ...before, conversation: applyEvents(conversation, action.events) };
    case "gapReceived":
      return { ...before, conversation: applyGap(conversation, action.gap, action.mustReload) };
    case "connectionChanged":
      return { ...before, connection: action.connection };
    case "failed":
      return { ...before, error: action.error };
  }
}

export interface LiveConversation extends ConversationState {
  readonly readOlder: () => Promise<void>;
  readonly readNewer: () => Promise<void>;
  readonly readLatest: () => Promise<void>;
}

/** Open a session at its end, or around the message with a number. */
export function useConversation(id: string, at: number | null): LiveConversation {
  const [state, dispatch] = useReducer(reduce, INITIAL_STATE, (start) => initialState(start, id, at));
  const loading = useRef(new Set<string>());
  const { messages, tail } = state.conversation;
  const last = messages.at(-1)?.sequence ?? 0;
  const first = messages[0]?.sequence ?? 0;

  useEffect(() => openConversation(id, at, dispatch), [id, at]);

  const read = useCallback(
    async (query: PageQuery, keep: "first" | "last") => {
      const direction = query.after === undefined ? "up" : "down";
      if (loading.current.has(direction)) return;
      loading.current.add(direction);
      try {
        dispatch({ type: "pageLoaded", page: await fetchMessages(id, query), keep });
      } catch (error) {
        // The stream reports a lost connection; the page is loaded again after it reconnects.
        if (error instanceof ApiError && error.status !== 0) dispatch({ type: "failed", error });
      } finally {
        loading.current.delete(direction);
      }
    },
    [id],
  );

  const { isFollowing, connection } = state;
  useEffect(() => {
    if (isFollowing && tail > last && connection !== "connecting") void read({ after: last, limit: CATCH_UP_PAGE_SIZE }, "last");
  }, [isFollowing, tail, last, connection, read]);

  const readOlder = useCallback(
    async () => (first > 1 ? read({ before: first, limit: PAGE_SIZE }, "first") : undefined),
    [first, read],
  );
  const readNewer = useCallback(async () => read({ after: last, limit: PAGE_SIZE }, "last"), [last, read]);
  const readLatest = useCallback(async () => read({ before: END, limit: PAGE_SIZE }, "last"), [read]);
  return { ...state, readOlder, readNewer, readLatest };
}

/** Start with the prefetched screen, if it has arrived. */
function initialState(start: ConversationState, id: string, at: number | null): ConversationState {
  const screen = prefetchedScreen(id, at);
  if (screen === null) return start;
  queryClient.setQueryData(["session", id], screen.session);
  return reduce(start, { type: "opened", page: screen.page, streamStart: screen.streamStart });
}

/** Load a session and subscribe to its events; returns a function that stops both. */
function openConversation(id: string, at: number | null, dispatch: (action: Action) => void): () => void {
  let stop: () => void = () => undefined;
  let isActive = true;
  let wasConnected = false;
  /** The end of the last gap: a stream that starts before it would receive the same gap again. */
  let gapEnd = 0;
  const reopen = () => {
    stop();
    void open();
  };
  const handlers: StreamHandlers = {
    onEvents: (events) => {
      dispatch({ type: "eventsReceived", events });
      invalidateStaleQueries(id, events);
    },
    onGap: (gap, mustReload) => {
      dispatch({ type: "gapReceived", gap, mustReload });
      if (!mustReload) return;
      gapEnd = Math.max(gapEnd, gap.to);
      reopen();
    },
    onConnected: () => {
      dispatch({ type: "connectionChanged", connection: "live" });
      // After a reconnect, data that was loaded before may be stale.
      if (wasConnected) void queryClient.invalidateQueries({ queryKey: ["session", id] });
      wasConnected = true;
    },
    onDisconnected: () => dispatch({ type: "connectionChanged", connection: "disconnected" }),
    onEnded: reopen,
  };
  const open = async () => {
    try {
      const { session, page, streamStart } = await loadFirstScreen(id, at);
      if (!isActive) return;
      queryClient.setQueryData(["session", id], session);
      dispatch({ type: "opened", page, streamStart });
      stop = openEventStream(id, Math.max(streamStart.since, gapEnd), handlers);
    } catch (error) {
      if (!isActive) return;
      const apiError = error instanceof ApiError ? error : new ApiError(0, "failed", String(error));
      dispatch({ type: "failed", error: apiError });
      if (apiError.isNotFound) return;
      const timer = setTimeout(() => void open(), 2_000);
      stop = () => clearTimeout(timer);
    }
  };
  void open();
  return () => {
    isActive = false;
    stop();
  };
}

/** Invalidate the queries whose data the events change but do not contain. */
function invalidateStaleQueries(id: string, events: readonly StreamEvent[]): void {
  const names = new Set(events.map((each) => each.event_type));
  const hasAny = (...types: string[]) => types.some((name) => names.has(name));
  const invalidate = (...key: string[]) => void queryClient.invalidateQueries({ queryKey: key, exact: true });
  if (hasAny("session.started", "session.completed", "session.failed", "step.generated", "turn.paused", "turn.continued")) invalidate("session", id);
  if (hasAny("tool.approval_requested", "tool.approval_answered", "session.completed", "session.failed")) {
    invalidate("session", id, "approvals");
    invalidate("approvals", "waiting");
  }
  if (hasAny("tool.requested", "tool.started", "tool.completed")) invalidate("session", id, "requested");
  if (hasAny("tool.settled", "session.completed", "session.failed")) invalidate("session", id, "unknown");
}
