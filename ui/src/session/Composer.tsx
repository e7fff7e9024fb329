/** Where one writes; while a turn runs, what is sent waits for its end. */
import { useMutation } from "@tanstack/react-query";
import { useEffect, useRef, useState } from "react";

import { newId, server, told, UNTIL_ANSWERED } from "../api/client";
import type { Session } from "../api/forms";
import { queries } from "../api/queries";
import { releaseKeys } from "../app/keys";
import { Sending, Trouble } from "../app/Notice";
import { isToWrite } from "../app/router";
import { TextField } from "../app/TextField";

interface Props {
  readonly session: Session;
  readonly isRunning: boolean;
  readonly onInterrupt: () => void;
}

export function Composer({ session, isRunning, onInterrupt }: Props) {
  const [text, setText] = useDraft(session.id);
  const id = useRef(newId());
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (isToWrite()) field.current?.focus();
    releaseKeys();
  }, []);
  const send = useMutation({
    // By what is given: somebody may write on while this is sent.
    mutationFn: (message: { id: string; text: string }) =>
      told(
        server.POST("/v1/sessions/{session_id}/messages", {
          params: { path: { session_id: session.id } },
          body: { role: "user", id: message.id, content: { text: message.text } },
        }),
      ),
    ...UNTIL_ANSWERED,
    onSuccess: (_, sent) => {
      if (sessionStorage.getItem(keptUnder(session.id)) === sent.text) sessionStorage.removeItem(keptUnder(session.id));
      setText((now) => (now.startsWith(sent.text) ? now.slice(sent.text.length) : now));
      void queries.invalidateQueries({ queryKey: ["session", session.id] });
    },
    // A line that broke may have carried it: sent again under its id, it is there once.
    onSettled: (_, error) => {
      if (error === null) id.current = newId();
    },
  });
  const submit = () => {
    // A button that is pressed and fades takes the focus with it.
    field.current?.focus();
    if (text.trim() !== "" && !send.isPending) send.mutate({ id: id.current, text });
  };
  if (session.state === "failed") {
    return <p className="hint">This session's agent is lost. Fork it from any message to go on.</p>;
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
          // Other words are another message.
          if (send.isError) id.current = newId();
          setText(value);
        }}
        onSend={submit}
        placeholder={isClosed ? "A message opens this session again" : isRunning ? "What comes next" : "Reply"}
      />
      <div className="composer-acts">
        {isRunning && (
          <button type="button" className="danger" onClick={onInterrupt}>
            Stop <kbd>Esc</kbd>
          </button>
        )}
        <button type="submit" className="primary" disabled={text.trim() === "" || send.isPending}>
          {isRunning ? "Queue" : "Send"}
        </button>
      </div>
      <Sending failures={send.failureCount} isPending={send.isPending} />
      <Trouble error={send.error} />
    </form>
  );
}

const keptUnder = (sessionId: string) => `holdfast.draft.${sessionId}`;

/** What was written and not sent is still there when somebody comes back. */
function useDraft(sessionId: string) {
  const key = keptUnder(sessionId);
  const [text, setText] = useState(() => sessionStorage.getItem(key) ?? "");
  useEffect(() => {
    if (text === "") sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, text);
  }, [key, text]);
  return [text, setText] as const;
}
