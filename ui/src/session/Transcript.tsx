/** The conversation: rows of a stretch that grows at both ends and is never long. */
import { useMemo, useRef } from "react";

import type { Approval, Session } from "../api/forms";
import { modelName } from "../text/format";
import { visible } from "../text/visible";
import { isAtTail } from "./conversation";
import { RowView } from "./RowView";
import { rowsOf } from "./rows";
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
            onTrouble={onTrouble}
          />
        ))}
        {conversation.isRunning && isLive && approvals.length === 0 && <Working held={held} />}
        {conversation.failure && !conversation.isRunning && (
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
