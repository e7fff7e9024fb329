/** One session: header, transcript and message field. */
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useState } from "react";

import { ApiError, server, unwrap } from "../api/client";
import { approvalsQuery, sessionQuery } from "../api/queries";
import { Link } from "../app/Link";
import { EmptyState, ErrorMessage } from "../app/notices";
import { blurField, useShortcuts } from "../app/shortcuts";
import { useTitle } from "../app/useTitle";
import { ApprovalRequest } from "./ApprovalRequest";
import { Composer } from "./Composer";
import { Header } from "./Header";
import { PlanView } from "./PlanView";
import { Transcript } from "./Transcript";
import { TurnWait } from "./TurnWait";
import { UnknownCalls } from "./UnknownCalls";
import { useConversation } from "./useConversation";

export function SessionPage({ id, at }: { id: string; at: number | null }) {
  const live = useConversation(id, at);
  const session = useQuery({ ...sessionQuery(id), enabled: live.connection !== "connecting" }).data;
  const approvals = useQuery({ ...approvalsQuery(id), enabled: live.connection !== "connecting" }).data?.data;
  const [error, setError] = useState<unknown>(null);
  const { conversation } = live;
  useEffect(() => {
    // Errors of a lost connection are obsolete after a reconnect.
    if (live.connection === "live") setError((now: unknown) => (now instanceof ApiError && now.status === 0 ? null : now));
  }, [live.connection]);
  const interrupt = useCallback(() => {
    const request = unwrap(server.POST("/v1/sessions/{session_id}/interrupt", { params: { path: { session_id: id } }, body: {} }));
    request.then(() => setError(null), setError);
  }, [id]);
  const shortcuts = useMemo(
    () => ({
      c: () => document.querySelector<HTMLTextAreaElement>(".composer textarea")?.focus(),
      Escape: conversation.isRunning ? interrupt : blurField,
    }),
    [conversation.isRunning, interrupt],
  );
  useShortcuts(shortcuts);
  useTitle(session === undefined ? null : (session.title ?? "Untitled"));
  if (live.error?.isNotFound) return <SessionNotFound />;
  if (session === undefined) return <div className="session">{live.error && <ErrorMessage error={live.error} />}</div>;
  const unattached = approvals?.filter((each) => each.tool_call_id === null) ?? [];
  return (
    <article className="session">
      <Header session={session} conversation={conversation} connection={live.connection} onError={setError} />
      <Banners connection={live.connection} gap={conversation.gap} />
      <Transcript live={live} session={session} approvals={approvals ?? []} at={at} onError={setError} />
      <div className="dock">
        <ErrorMessage error={error ?? live.error} />
        <UnknownCalls session={session} />
        <TurnWait session={session} />
        {unattached.map((approval) => (
          <ApprovalRequest key={approval.id} approval={approval} />
        ))}
        {conversation.plan.length > 0 && <PlanView steps={conversation.plan} />}
        <Composer session={session} isRunning={conversation.isRunning} onInterrupt={interrupt} />
      </div>
    </article>
  );
}

function Banners({ connection, gap }: { connection: string; gap: { from: number; to: number } | null }) {
  return (
    <div aria-live="polite">
      {connection === "disconnected" && (
        <p className="banner disconnected">
          Connection lost. No data is lost: the server stores all events, and this page reconnects automatically.
        </p>
      )}
      {gap && connection === "live" && (
        <p className="banner">
          Events {gap.from} to {gap.to} are no longer kept; the messages were loaded instead.
        </p>
      )}
    </div>
  );
}

function SessionNotFound() {
  return (
    <EmptyState title="Session not found">
      <p>It was deleted, or it belongs to another user.</p>
      <Link to="/sessions" className="button">
        All sessions
      </Link>
    </EmptyState>
  );
}
