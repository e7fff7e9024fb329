import type { ReactNode } from "react";

import { ApiError } from "../api/client";

/** An error, with the message and the code of the server. */
export function ErrorMessage({ error, children }: { error: unknown; children?: ReactNode }) {
  if (error === null || error === undefined) return null;
  const message = error instanceof Error ? error.message : String(error);
  const code = error instanceof ApiError ? error.code : null;
  return (
    <div className="error-message" role="alert">
      <p>
        {message} {code && <code>{code}</code>}
      </p>
      {children}
    </div>
  );
}

/** Shown while a request is being retried. */
export function RetryNotice({ failures, isPending }: { failures: number; isPending: boolean }) {
  if (!isPending || failures === 0) return null;
  return (
    <p className="hint" role="status">
      Not sent yet: the server does not respond. This page keeps trying.
    </p>
  );
}

/** Shown instead of missing content, with what to do next. */
export function EmptyState({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}
