/** Asks before a session is deleted; where forks go on from it, also what becomes of them. */
import { useMutation } from "@tanstack/react-query";

import { Refusal, server, told } from "../api/client";
import type { Session } from "../api/forms";
import { queries } from "../api/queries";
import { Dialog } from "../app/Dialog";
import { Trouble } from "../app/Notice";
import { go } from "../app/router";
import { visible } from "../text/visible";

type Forks = { readonly cascade: true } | { readonly detach: true } | Record<string, never>;

export function Deletion({ session, onClose }: { session: Session; onClose: () => void }) {
  const remove = useMutation({
    mutationFn: (query: Forks) => told(server.DELETE("/v1/sessions/{session_id}", { params: { path: { session_id: session.id }, query } })),
    onSuccess: () => {
      void queries.invalidateQueries({ queryKey: ["sessions"] });
      go("/sessions");
    },
  });
  const hasForks = remove.error instanceof Refusal && remove.error.code === "session_has_forks";
  return (
    <Dialog title="Delete this session?" onClose={onClose}>
      <p>
        <b>{session.title ? visible(session.title) : "Untitled"}</b> goes with all its messages. This cannot be undone.
      </p>
      {hasForks ? <p role="status">Other sessions are forks of it, and share its messages.</p> : <Trouble error={remove.error} />}
      <div className="row-of-buttons">
        <button type="button" onClick={onClose}>
          Keep it
        </button>
        {hasForks ? (
          <>
            <button type="button" disabled={remove.isPending} onClick={() => remove.mutate({ detach: true })}>
              Let forks stand alone
            </button>
            <button type="button" className="danger" disabled={remove.isPending} onClick={() => remove.mutate({ cascade: true })}>
              Delete forks too
            </button>
          </>
        ) : (
          <button type="button" className="danger" disabled={remove.isPending} onClick={() => remove.mutate({})}>
            Delete
          </button>
        )}
      </div>
    </Dialog>
  );
}
