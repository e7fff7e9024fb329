import type { ReactNode } from "react";

import { Refusal } from "../api/client";

/** Something that did not work, in the server's words, and what can be done about it. */
export function Trouble({ error, children }: { error: unknown; children?: ReactNode }) {
  if (error === null || error === undefined) return null;
  const message = error instanceof Error ? error.message : String(error);
  const code = error instanceof Refusal ? error.code : null;
  return (
    <div className="trouble" role="alert">
      <p>
        {message} {code && <code>{code}</code>}
      </p>
      {children}
    </div>
  );
}

/** Said while something is sent again and again; calm, because nothing is lost. */
export function Sending({ failures, isPending }: { failures: number; isPending: boolean }) {
  if (!isPending || failures === 0) return null;
  return (
    <p className="hint" role="status">
      Not sent yet: the server does not answer. This page sends it as soon as it does.
    </p>
  );
}

/** What stands where nothing is yet: it says what to do next. */
export function Empty({ title, children }: { title: string; children: ReactNode }) {
  return (
    <div className="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}
