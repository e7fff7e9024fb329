/** One session: what was said, what is being said, and a place to say more. */
import { useQuery } from "@tanstack/react-query";
import { useCallback, useEffect, useMemo, useState } from "react";

import { Refusal, server, told } from "../api/client";
import { approvalsQuery, sessionQuery } from "../api/queries";
import { leaveField, useKeys } from "../app/keys";
import { Link } from "../app/Link";
import { Empty, Trouble } from "../app/Notice";
import { useTitle } from "../app/useTitle";
import { Composer } from "./Composer";
import { Header } from "./Header";
import { PlanView } from "./PlanView";
import { Question } from "./Question";
import { Transcript } from "./Transcript";
import { UnknownCalls } from "./UnknownCalls";
import { useConversation } from "./useConversation";

export function SessionPage({ id, at }: { id: string; at: number | null }) {
  const held = useConversation(id, at);
  const session = useQuery({ ...sessionQuery(id), enabled: held.link !== "opening" }).data;
  const approvals = useQuery({ ...approvalsQuery(id), enabled: held.link !== "opening" }).data?.data;
  const [trouble, setTrouble] = useState<unknown>(null);
  const { conversation } = held;
  useEffect(() => {
    // What failed because the line was broken is no trouble any more.
    if (held.link === "live") setTrouble((now: unknown) => (now instanceof Refusal && now.status === 0 ? null : now));
  }, [held.link]);
  const interrupt = useCallback(() => {
    const asked = told(server.POST("/v1/sessions/{session_id}/interrupt", { params: { path: { session_id: id } }, body: {} }));
    asked.then(() => setTrouble(null), setTrouble);
  }, [id]);
  const keys = useMemo(
    () => ({
      c: () => document.querySelector<HTMLTextAreaElement>(".composer textarea")?.focus(),
      Escape: conversation.isRunning ? interrupt : leaveField,
    }),
    [conversation.isRunning, interrupt],
  );
  useKeys(keys);
  useTitle(session === undefined ? null : (session.title ?? "Untitled"));
  if (held.refusal?.isMissing) return <Missing />;
  if (session === undefined) return <div className="session">{held.refusal && <Trouble error={held.refusal} />}</div>;
  const loose = approvals?.filter((each) => each.tool_call_id === null) ?? [];
  return (
    <article className="session">
      <Header session={session} conversation={conversation} link={held.link} onTrouble={setTrouble} />
      <Banners link={held.link} gap={conversation.gap} />
      <Transcript held={held} session={session} approvals={approvals ?? []} at={at} onTrouble={setTrouble} />
      <div className="dock">
        <Trouble error={trouble ?? held.refusal} />
        <UnknownCalls session={session} />
        {loose.map((approval) => (
          <Question key={approval.id} approval={approval} />
        ))}
        {conversation.plan.length > 0 && <PlanView steps={conversation.plan} />}
        <Composer session={session} isRunning={conversation.isRunning} onInterrupt={interrupt} />
      </div>
    </article>
  );
}

function Banners({ link, gap }: { link: string; gap: { from: number; to: number } | null }) {
  return (
    <div aria-live="polite">
      {link === "lost" && (
        <p className="banner lost">
          The line to the server is broken. Nothing is lost: what happens meanwhile is on its disk, and this page tries
          again by itself.
        </p>
      )}
      {gap && link === "live" && (
        <p className="banner">
          Events {gap.from} to {gap.to} are no longer kept; their messages were read from the record.
        </p>
      )}
    </div>
  );
}

function Missing() {
  return (
    <Empty title="There is no such session">
      <p>It was deleted, or it belongs to somebody else.</p>
      <Link to="/sessions" className="button">
        All sessions
      </Link>
    </Empty>
  );
}
