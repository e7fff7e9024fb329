/** Where one writes; while a turn runs, what is sent waits for its end. */
import { useMutation } from "@tanstack/react-query";
import { useRef, useState } from "react";

import { newId, server, told } from "../api/client";
import type { Session } from "../api/forms";
import { queries } from "../api/queries";
import { Trouble } from "../app/Notice";
import { TextField } from "../app/TextField";

interface Props {
  readonly session: Session;
  readonly isRunning: boolean;
  readonly onInterrupt: () => void;
}

export function Composer({ session, isRunning, onInterrupt }: Props) {
  const [text, setText] = useDraft(session.id);
  const id = useRef(newId());
  const send = useMutation({
    mutationFn: () =>
      told(
        server.POST("/v1/sessions/{session_id}/messages", {
          params: { path: { session_id: session.id } },
          body: { role: "user", id: id.current, content: { text } },
        }),
      ),
    onSuccess: () => {
      setText("");
      void queries.invalidateQueries({ queryKey: ["session", session.id] });
    },
    // A line that broke may have carried it: sent again under its id, it is there once.
    onSettled: (_, error) => {
      if (error === null) id.current = newId();
    },
  });
  const submit = () => {
    if (text.trim() !== "" && !send.isPending) send.mutate();
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
      <Trouble error={send.error} />
    </form>
  );
}

/** What was written and not sent is still there when somebody comes back. */
function useDraft(sessionId: string): [string, (text: string) => void] {
  const key = `holdfast.draft.${sessionId}`;
  const [text, setText] = useState(() => sessionStorage.getItem(key) ?? "");
  const change = (next: string) => {
    if (next === "") sessionStorage.removeItem(key);
    else sessionStorage.setItem(key, next);
    setText(next);
  };
  return [text, change];
}
