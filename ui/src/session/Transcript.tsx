/** The rows of a conversation; more are loaded at both ends while scrolling. */
import { useMemo, useRef } from "react";

import type { Approval, Message, Session } from "../api/types";
import { modelLabel } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import { isAtTail, type Conversation } from "./conversation";
import { buildRows, type Row } from "./rows";
import { RowView } from "./RowView";
import type { LiveConversation } from "./useConversation";
import { useScrolling } from "./useScrolling";

interface Props {
  readonly live: LiveConversation;
  readonly session: Session;
  readonly approvals: readonly Approval[];
  readonly at: number | null;
  readonly onError: (error: unknown) => void;
}

export function Transcript({ live, session, approvals, at, onError }: Props) {
  const { conversation, readOlder, readNewer, readLatest } = live;
  const { messages, drafts, startedCalls } = conversation;
  const isLive = isAtTail(conversation) || live.isFollowing;
  const rows = useMemo(() => buildRows(messages, isLive ? drafts : []), [messages, drafts, isLive]);
  const container = useRef<HTMLDivElement>(null);
  const { isFarFromEnd, handleScroll, scrollToEnd } = useScrolling(container, rows, { at, isLive, readOlder, readNewer });
  const approvalsByCall = useMemo(() => new Map(approvals.map((each) => [each.tool_call_id, each])), [approvals]);
  return (
    <div className="transcript" ref={container} onScroll={handleScroll} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
      <div className="rows">
        {(messages[0]?.sequence ?? 1) > 1 && <p className="loading">Scroll up to load earlier messages.</p>}
        {messages[0]?.sequence === 1 && <ForkOrigin session={session} />}
        {rows.map((row) => (
          <RowView
            key={row.key}
            row={row}
            sessionId={session.id}
            isMarked={row.kind !== "draft" && row.message.sequence === at}
            approval={row.kind === "call" ? (approvalsByCall.get(String(row.message.content["id"])) ?? null) : null}
            isStarted={row.kind === "call" && String(row.message.content["id"]) in startedCalls}
            isQueued={isQueued(row, conversation)}
            onError={onError}
          />
        ))}
        {conversation.isRunning && isLive && approvals.length === 0 && session.waiting === null && <TurnProgress live={live} />}
        {conversation.failure && !conversation.isRunning && !hasNotice(messages) && (
          <p className="failure" role="alert">
            {conversation.failure.message} <code>{conversation.failure.code}</code>
          </p>
        )}
      </div>
      {(isFarFromEnd || !isLive) && (
        <button type="button" className="latest" onClick={() => void readLatest().then(scrollToEnd)}>
          ↓ Latest
        </button>
      )}
    </div>
  );
}

/** Whether a message waits for the end of the running turn. */
function isQueued(row: Row, { isRunning, currentTurn }: Conversation): boolean {
  return row.kind === "message" && row.message.role === "user" && isRunning && currentTurn > 0 && row.message.turn > currentTurn;
}

/** Whether the stored messages say how the turn ended; until then the failure of the stream is shown. */
function hasNotice(messages: readonly Message[]): boolean {
  return messages.at(-1)?.parts?.some((each) => each.type === "notice") ?? false;
}

function ForkOrigin({ session }: { session: Session }) {
  if (session.forked_from === null) return null;
  return (
    <p className="origin">
      Forked from <a href={`/sessions/${session.forked_from.session_id}?at=${session.forked_from.sequence}`}>message {session.forked_from.sequence} of another session</a>.
    </p>
  );
}

function TurnProgress({ live }: { live: LiveConversation }) {
  const { drafts, startedCalls, failure, model } = live.conversation;
  const isStreaming = drafts.some((each) => each.text.text !== "" && !each.isStored);
  if (isStreaming) return null;
  const tools = Object.values(startedCalls);
  const activity = tools.length > 0 ? `is running ${tools.join(", ")}` : failure?.willRetry ? "is trying another model" : "is working";
  return (
    <p className="working" role="status">
      <i aria-hidden="true" /> {model === null ? "The agent" : escapeInvisible(modelLabel(model))} {activity}
    </p>
  );
}
