/** The message field; a message that is sent while a turn runs is queued. */
import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { newId, RETRY_UNTIL_ANSWERED, server, unwrap } from "../api/client";
import { queryClient } from "../api/queries";
import type { Session } from "../api/types";
import { ErrorMessage, RetryNotice } from "../app/notices";
import { shouldFocusComposer } from "../app/router";
import { resumeShortcuts } from "../app/shortcuts";
import { TextField } from "../app/TextField";
import { TurnLimit, useTurnsLeft } from "./TurnLimit";

interface Props {
  readonly session: Session;
  readonly isRunning: boolean;
  readonly onInterrupt: () => void;
}

export function Composer({ session, isRunning, onInterrupt }: Props) {
  const [text, setText] = useDraft(session.id);
  const id = useRef(newId());
  const field = useRef<HTMLTextAreaElement>(null);
  const turnsLeft = useTurnsLeft(session);
  const canSend = text.trim() !== "" && turnsLeft !== 0;
  useEffect(() => {
    if (shouldFocusComposer()) field.current?.focus();
    resumeShortcuts();
  }, []);
  const send = useMutation({
    // The text is an argument, because the field may change while the request is pending.
    mutationFn: (message: { id: string; text: string }) =>
      unwrap(
        server.POST("/v1/sessions/{session_id}/messages", {
          params: { path: { session_id: session.id } },
          body: { role: "user", id: message.id, content: { text: message.text } },
        }),
      ),
    ...RETRY_UNTIL_ANSWERED,
    onSuccess: (_, sent) => {
      if (sessionStorage.getItem(draftKey(session.id)) === sent.text) sessionStorage.removeItem(draftKey(session.id));
      setText((current) => (current.startsWith(sent.text) ? current.slice(sent.text.length) : current));
      void queryClient.invalidateQueries({ queryKey: ["session", session.id] });
    },
    // After a network error the server may have the message: keep the id, so that a retry is idempotent.
    onSettled: (_, error) => {
      if (error === null) id.current = newId();
    },
  });
  const submit = () => {
    // Disabling the focused button would drop the focus.
    field.current?.focus();
    if (canSend && !send.isPending) send.mutate({ id: id.current, text });
  };
  if (session.state === "failed") {
    return <p className="hint">This session's agent has failed and cannot be resumed. Fork the session from any message to continue.</p>;
  }
  const isClosed = session.state === "completed" || session.state === "cancelled";
  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <TextField
        ref={field}
        label="Message"
        value={text}
        onChange={(value) => {
          // A changed text is another message.
          if (send.isError) id.current = newId();
          setText(value);
        }}
        onSend={submit}
        placeholder={isClosed ? "Send a message to reopen this session" : isRunning ? "Queue a message" : "Reply"}
      />
      <div className="composer-actions">
        {isRunning && (
          <button type="button" className="danger" onClick={onInterrupt}>
            Stop <kbd>Esc</kbd>
          </button>
        )}
        <button type="submit" className="primary" disabled={!canSend || send.isPending}>
          {isRunning ? "Queue" : "Send"}
        </button>
      </div>
      {turnsLeft !== null && <TurnLimit session={session} left={turnsLeft} />}
      <RetryNotice failures={send.failureCount} isPending={send.isPending} />
      <ErrorMessage error={send.error} />
    </form>
  );
}

const draftKey = (sessionId: string) => `holdfast.draft.${sessionId}`;

/** Keep unsent text in the session storage, so that it survives navigation and reloads. */
function useDraft(sessionId: string) {
  const key = draftKey(sessionId);
  const [text, setText] = useState(() => sessionStorage.getItem(key) ?? "");
  useEffect(() => {
    if (text === "") sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, text);
  }, [key, text]);
  return [text, setText] as const;
}
