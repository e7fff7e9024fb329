/** Confirms the deletion of a session; if it has forks, also asks what to do with them. */
import { useMutation } from "@tanstack/react-query";

import { ApiError, server, unwrap } from "../api/client";
import { queryClient } from "../api/queries";
import type { Session } from "../api/types";
import { Dialog } from "../app/Dialog";
import { ErrorMessage } from "../app/notices";
import { navigate } from "../app/router";
import { escapeInvisible } from "../text/invisible";

type ForkPolicy = { readonly cascade: true } | { readonly detach: true } | Record<string, never>;

export function DeleteDialog({ session, onClose }: { session: Session; onClose: () => void }) {
  const remove = useMutation({
    mutationFn: (query: ForkPolicy) => unwrap(server.DELETE("/v1/sessions/{session_id}", { params: { path: { session_id: session.id }, query } })),
    onSuccess: () => {
      void queryClient.invalidateQueries({ queryKey: ["sessions"] });
      navigate("/sessions");
    },
  });
  const hasForks = remove.error instanceof ApiError && remove.error.code === "session_has_forks";
  return (
    <Dialog title="Delete this session?" onClose={onClose}>
      <p>
        <b>{session.title ? escapeInvisible(session.title) : "Untitled"}</b> and all its messages will be deleted. This cannot be undone.
      </p>
      {hasForks ? <p role="status">Other sessions are forks of this session and share its messages.</p> : <ErrorMessage error={remove.error} />}
      <div className="button-row">
        <button type="button" onClick={onClose}>
          Cancel
        </button>
        {hasForks ? (
          <>
            <button type="button" disabled={remove.isPending} onClick={() => remove.mutate({ detach: true })}>
              Keep forks
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
