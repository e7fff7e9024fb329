/** Leads from a time to the message that was said then. */
import { useEffect, useState } from "react";

import { server, told } from "../api/client";
import { Trouble } from "../app/Notice";
import { go } from "../app/router";

export function Moment({ id, time }: { id: string; time: string }) {
  const [trouble, setTrouble] = useState<unknown>(null);
  useEffect(() => {
    sequenceAt(id, time).then((at) => go(`/sessions/${id}${at > 0 ? `?at=${at}` : ""}`, { replace: true }), setTrouble);
  }, [id, time]);
  return trouble === null ? <p className="wait">…</p> : <Trouble error={trouble} />;
}

/** Return the number of the last message that was there at a time, found by halving. */
async function sequenceAt(id: string, time: string): Promise<number> {
  const wanted = Date.parse(time);
  const one = async (query: { after?: number; before?: number }) => {
    const params = { path: { session_id: id }, query: { ...query, limit: 1 } };
    return (await told(server.GET("/v1/sessions/{session_id}/messages", { params }))).data[0];
  };
  const last = await one({ before: Number.MAX_SAFE_INTEGER });
  let [low, high] = [0, last?.sequence ?? 0];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    const message = await one({ after: middle - 1 });
    if (message !== undefined && Date.parse(message.created_at) <= wanted) low = middle;
    else high = middle - 1;
  }
  return low;
}
