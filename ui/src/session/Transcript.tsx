/** The conversation: rows of a stretch that grows at both ends and is never long. */
import { useMemo, useRef } from "react";

import type { Approval, Message, Session } from "../api/forms";
import { modelName } from "../text/format";
import { visible } from "../text/visible";
import { isAtTail, type Conversation } from "./conversation";
import { RowView } from "./RowView";
import { rowsOf, type Row } from "./rows";
import type { Opened } from "./useConversation";
import { useScrolling } from "./useScrolling";

interface Props {
  readonly held: Opened;
  readonly session: Session;
  readonly approvals: readonly Approval[];
  readonly at: number | null;
  readonly onTrouble: (error: unknown) => void;
}

export function Transcript({ held, session, approvals, at, onTrouble }: Props) {
  const { conversation, readOlder, readNewer, toLatest } = held;
  const { messages, drafts, startedCalls } = conversation;
  const isLive = isAtTail(conversation) || held.isFollowing;
  const rows = useMemo(() => rowsOf(messages, isLive ? drafts : []), [messages, drafts, isLive]);
  const box = useRef<HTMLDivElement>(null);
  const { isAway, scrolled, stick } = useScrolling(box, rows, { at, isLive, readOlder, readNewer });
  const questions = useMemo(() => new Map(approvals.map((each) => [each.tool_call_id, each])), [approvals]);
  return (
    <div className="transcript" ref={box} onScroll={scrolled} tabIndex={0} role="log" aria-label="Conversation" aria-live="off">
      <div className="rows">
        {(messages[0]?.sequence ?? 1) > 1 && <p className="wait">Earlier messages come as you scroll.</p>}
        {messages[0]?.sequence === 1 && <Beginning session={session} />}
        {rows.map((row) => (
          <RowView
            key={row.key}
            row={row}
            sessionId={session.id}
            isMarked={row.kind !== "draft" && row.message.sequence === at}
            question={row.kind === "call" ? (questions.get(String(row.message.content["id"])) ?? null) : null}
            isStarted={row.kind === "call" && String(row.message.content["id"]) in startedCalls}
            isQueued={isQueued(row, conversation)}
            onTrouble={onTrouble}
          />
        ))}
        {conversation.isRunning && isLive && approvals.length === 0 && <Working held={held} />}
        {conversation.failure && !conversation.isRunning && !isToldOf(messages) && (
          <p className="failure" role="alert">
            {conversation.failure.message} <code>{conversation.failure.code}</code>
          </p>
        )}
      </div>
      {(isAway || !isLive) && (
        <button type="button" className="latest" onClick={() => void toLatest().then(stick)}>
          ↓ Latest
        </button>
      )}
    </div>
  );
}

/** What was said while a turn runs waits for the end of that turn. */
function isQueued(row: Row, { isRunning, playing }: Conversation): boolean {
  return row.kind === "message" && row.message.role === "user" && isRunning && playing > 0 && row.message.turn > playing;
}

/** How a turn ended is in the record; only until that is read, the stream's word for it is shown. */
function isToldOf(messages: readonly Message[]): boolean {
  return messages.at(-1)?.parts?.some((each) => each.type === "notice") ?? false;
}

function Beginning({ session }: { session: Session }) {
  if (session.forked_from === null) return null;
  return (
    <p className="origin">
      Goes on from <a href={`/sessions/${session.forked_from.session_id}?at=${session.forked_from.sequence}`}>message {session.forked_from.sequence} of another session</a>.
    </p>
  );
}

function Working({ held }: { held: Opened }) {
  const { drafts, startedCalls, failure, model } = held.conversation;
  const isSpeaking = drafts.some((each) => each.text.text !== "" && !each.isStored);
  if (isSpeaking) return null;
  const tools = Object.values(startedCalls);
  const what = tools.length > 0 ? `runs ${tools.join(", ")}` : failure?.willRetry ? "tries another model" : "works";
  return (
    <p className="working" role="status">
      <i aria-hidden="true" /> {model === null ? "The agent" : visible(modelName(model))} {what}
    </p>
  );
}
