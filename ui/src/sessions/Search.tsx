/** Full-text search over messages and titles. */
import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState, type KeyboardEvent } from "react";

import { server, unwrap } from "../api/client";
import { sessionQuery } from "../api/queries";
import type { Hit } from "../api/types";
import { Dialog } from "../app/Dialog";
import { ErrorMessage } from "../app/notices";
import { navigate } from "../app/router";
import { useNow } from "../app/useNow";
import { formatAge } from "../text/format";
import { escapeInvisible } from "../text/invisible";
import { splitSnippet } from "./snippet";

export function Search({ onClose }: { onClose: () => void }) {
  const [text, setText] = useState("");
  const [selected, setSelected] = useState(0);
  const query = useDeferredValue(text.trim());
  const { data, error, isFetching } = useQuery({
    queryKey: ["search", query],
    queryFn: async () => {
      const { data: hits } = await unwrap(server.GET("/v1/search", { params: { query: { q: query, limit: 30 } } }));
      return { hits, query };
    },
    enabled: query !== "",
    placeholderData: (previous) => previous,
  });
  const hits = query === "" ? [] : (data?.hits ?? []).filter((each) => each.session_id !== null);
  const open = (hit: Hit | undefined) => {
    if (hit === undefined) return;
    onClose();
    navigate(hitUrl(hit));
  };
  const handleKeyDown = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      setSelected(Math.max(0, Math.min(hits.length - 1, selected + step)));
    }
    if (event.key === "Enter") open(hits[selected]);
  };
  return (
    <Dialog title="Search" onClose={onClose}>
      <input
        type="search"
        aria-label="Search query"
        placeholder={'Words, "a phrase", prefix*, -excluded'}
        value={text}
        onKeyDown={handleKeyDown}
        onChange={(event) => {
          setText(event.target.value);
          setSelected(0);
        }}
      />
      <ErrorMessage error={error} />
      <ol className="hits">
        {hits.map((hit, index) => (
          <li key={`${hit.session_id} ${hit.message_id ?? hit.observation_id ?? index}`}>
            <button type="button" ref={index === selected ? scrollIntoView : null} className={index === selected ? "hit selected" : "hit"} onClick={() => open(hit)}>
              <HitView hit={hit} query={data?.query ?? query} />
            </button>
          </li>
        ))}
      </ol>
      {query !== "" && !isFetching && hits.length === 0 && <p className="hint">No results.</p>}
    </Dialog>
  );
}

function scrollIntoView(entry: HTMLElement | null): void {
  entry?.scrollIntoView({ block: "nearest" });
}

function hitUrl(hit: Hit): string {
  const at = hit.message_sequence === null ? "" : `?at=${hit.message_sequence}`;
  return `/sessions/${hit.session_id}${at}`;
}

function HitView({ hit, query }: { hit: Hit; query: string }) {
  const now = useNow();
  const session = useQuery({ ...sessionQuery(hit.session_id ?? ""), enabled: hit.session_id !== null, staleTime: 60_000 }).data;
  return (
    <>
      <span className="hit-context">
        <b>{session?.title ? escapeInvisible(session.title) : session ? "Untitled" : "…"}</b> · {hit.role ?? "title"} · {formatAge(hit.created_at, now)}
      </span>
      <span>{splitSnippet(escapeInvisible(hit.snippet), query).map(({ text, isMatch }, index) => (isMatch ? <mark key={index}>{text}</mark> : text))}</span>
    </>
  );
}
