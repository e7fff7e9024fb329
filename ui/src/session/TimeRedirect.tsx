/** Redirects from a time to the last message before it. */
import { useEffect, useState } from "react";

import { server, unwrap } from "../api/client";
import { ErrorMessage } from "../app/notices";
import { navigate } from "../app/router";

export function TimeRedirect({ id, time }: { id: string; time: string }) {
  const [error, setError] = useState<unknown>(null);
  useEffect(() => {
    findSequenceAt(id, time).then((at) => navigate(`/sessions/${id}${at > 0 ? `?at=${at}` : ""}`, { replace: true }), setError);
  }, [id, time]);
  return error === null ? <p className="loading">…</p> : <ErrorMessage error={error} />;
}

/** Find the number of the last message at a time, by binary search. */
async function findSequenceAt(id: string, time: string): Promise<number> {
  const target = Date.parse(time);
  const fetchOne = async (query: { after?: number; before?: number }) => {
    const params = { path: { session_id: id }, query: { ...query, limit: 1 } };
    return (await unwrap(server.GET("/v1/sessions/{session_id}/messages", { params }))).data[0];
  };
  const last = await fetchOne({ before: Number.MAX_SAFE_INTEGER });
  let [low, high] = [0, last?.sequence ?? 0];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    const message = await fetchOne({ after: middle - 1 });
    if (message !== undefined && Date.parse(message.created_at) <= target) low = middle;
    else high = middle - 1;
  }
  return low;
}
