/** A session as the page holds it: read once, then kept up to date by its stream. */
import { useCallback, useEffect, useReducer, useRef } from "react";

import { Refusal } from "../api/client";
import type { StreamEvent } from "../api/forms";
import { queries } from "../api/queries";
import { begun, type Beginning } from "./beginning";
import { isAtTail, NOTHING, trimmed, withEvents, withGap, withMessages, type Conversation, type Gap } from "./conversation";
import { listen, type Ear } from "./listening";
import { firstScreen, knownScreen, LAST, PAGE, pageOf, type Page, type Wanted } from "./reading";

const CATCH_UP = 1_000;

export type Link = "opening" | "live" | "lost";

export interface Held {
  readonly conversation: Conversation;
  readonly link: Link;
  readonly refusal: Refusal | null;
  /** Whether new messages are read as they come; not while somebody looks at old ones. */
  readonly isFollowing: boolean;
}

type Action =
  | { type: "opened"; page: Page; beginning: Beginning }
  | { type: "read"; page: Page; keep: "first" | "last" }
  | { type: "heard"; events: readonly StreamEvent[] }
  | { type: "missed"; gap: Gap; isMissed: boolean }
  | { type: "link"; link: Link }
  | { type: "refused"; refusal: Refusal };

const START: Held = { conversation: NOTHING, link: "opening", refusal: null, isFollowing: true };

function withPage(before: Conversation, { messages, isFollowed }: Page): Conversation {
  const last = messages.at(-1)?.sequence ?? 0;
  return withMessages({ ...before, tail: Math.max(before.tail, isFollowed ? last + 1 : last) }, messages);
}

function held(before: Held, action: Action): Held {
  const { conversation } = before;
  switch (action.type) {
    case "opened": {
      const after = begun({ ...withPage(conversation, action.page), drafts: [] }, action.beginning);
      return { ...before, conversation: after, refusal: null, isFollowing: isAtTail(after) };
    }
    case "read": {
      const after = trimmed(withPage(conversation, action.page), action.keep);
      // One who follows goes on, also when more has come while this was read.
      const isFollowing = isAtTail(after) || (before.isFollowing && action.keep === "last");
      return { ...before, conversation: after, isFollowing };
    }
    case "heard":
      return { ...before, conversation: withEvents(conversation, action.events) };
    case "missed":
      return { ...before, conversation: withGap(conversation, action.gap, action.isMissed) };
    case "link":
      return { ...before, link: action.link };
    case "refused":
      return { ...before, refusal: action.refusal };
  }
}

export interface Opened extends Held {
  readonly readOlder: () => Promise<void>;
  readonly readNewer: () => Promise<void>;
  readonly toLatest: () => Promise<void>;
}

/** Hold a session, beginning at its end or around the message with a number. */
export function useConversation(id: string, at: number | null): Opened {
  const [state, dispatch] = useReducer(held, START, (start) => heldAtOnce(start, id, at));
  const reading = useRef(new Set<string>());
  const { messages, tail } = state.conversation;
  const last = messages.at(-1)?.sequence ?? 0;
  const first = messages[0]?.sequence ?? 0;

  useEffect(() => opened(id, at, dispatch), [id, at]);

  const read = useCallback(
    async (query: Wanted, keep: "first" | "last") => {
      const way = query.after === undefined ? "up" : "down";
      if (reading.current.has(way)) return;
      reading.current.add(way);
      try {
        dispatch({ type: "read", page: await pageOf(id, query), keep });
      } catch (error) {
        // Whoever lost the line is told so by the stream; it is read again when that is back.
        if (error instanceof Refusal && error.status !== 0) dispatch({ type: "refused", refusal: error });
      } finally {
        reading.current.delete(way);
      }
    },
    [id],
  );

  const { isFollowing, link } = state;
  useEffect(() => {
    if (isFollowing && tail > last && link !== "opening") void read({ after: last, limit: CATCH_UP }, "last");
  }, [isFollowing, tail, last, link, read]);

  const readOlder = useCallback(
    async () => (first > 1 ? read({ before: first, limit: PAGE }, "first") : undefined),
    [first, read],
  );
  const readNewer = useCallback(async () => read({ after: last, limit: PAGE }, "last"), [last, read]);
  const toLatest = useCallback(async () => read({ before: LAST, limit: PAGE }, "last"), [read]);
  return { ...state, readOlder, readNewer, toLatest };
}

/** Begin with what was read before there was a page, where it is there. */
function heldAtOnce(start: Held, id: string, at: number | null): Held {
  const screen = knownScreen(id, at);
  if (screen === null) return start;
  queries.setQueryData(["session", id], screen.session);
  return held(start, { type: "opened", page: screen.page, beginning: screen.beginning });
}

/** Read a session and listen to it; returns what ends that. */
function opened(id: string, at: number | null, dispatch: (action: Action) => void): () => void {
  let stop: () => void = () => undefined;
  let isWanted = true;
  let isBack = false;
  /** The last number of a gap: a page that listened before it again would be sent the gap again. */
  let missedTo = 0;
  const again = () => {
    stop();
    void open();
  };
  const ear: Ear = {
    heard: (events) => {
      dispatch({ type: "heard", events });
      refresh(id, events);
    },
    missed: (gap, isMissed) => {
      dispatch({ type: "missed", gap, isMissed });
      if (!isMissed) return;
      missedTo = Math.max(missedTo, gap.to);
      again();
    },
    connected: () => {
      dispatch({ type: "link", link: "live" });
      // What was read just now is fresh; what was read before the line broke may not be.
      if (isBack) void queries.invalidateQueries({ queryKey: ["session", id] });
      isBack = true;
    },
    lost: () => dispatch({ type: "link", link: "lost" }),
    ended: again,
  };
  const open = async () => {
    try {
      const { session, page, beginning } = await firstScreen(id, at);
      if (!isWanted) return;
      queries.setQueryData(["session", id], session);
      dispatch({ type: "opened", page, beginning });
      stop = listen(id, Math.max(beginning.since, missedTo), ear);
    } catch (error) {
      if (!isWanted) return;
      const refusal = error instanceof Refusal ? error : new Refusal(0, "failed", String(error));
      dispatch({ type: "refused", refusal });
      if (refusal.isMissing) return;
      const timer = setTimeout(() => void open(), 2_000);
      stop = () => clearTimeout(timer);
    }
  };
  void open();
  return () => {
    isWanted = false;
    stop();
  };
}

/** Have read again what the events tell of and do not contain. */
function refresh(id: string, events: readonly StreamEvent[]): void {
  const names = new Set(events.map((each) => each.event_type));
  const isAny = (...wanted: string[]) => wanted.some((name) => names.has(name));
  const stale = (...key: string[]) => void queries.invalidateQueries({ queryKey: key, exact: true });
  if (isAny("session.started", "session.completed", "session.failed", "step.generated")) stale("session", id);
  if (isAny("tool.approval_requested", "tool.approval_answered", "session.completed", "session.failed")) {
    stale("session", id, "approvals");
    stale("approvals", "waiting");
  }
  if (isAny("tool.settled", "session.completed", "session.failed")) stale("session", id, "unknown");
}
