/** Search over everything that was said. */
import { useQuery } from "@tanstack/react-query";
import { useDeferredValue, useState, type KeyboardEvent } from "react";

import { server, told } from "../api/client";
import type { Hit } from "../api/forms";
import { sessionQuery } from "../api/queries";
import { Dialog } from "../app/Dialog";
import { Trouble } from "../app/Notice";
import { go } from "../app/router";
import { useNow } from "../app/useNow";
import { ago } from "../text/format";
import { visible } from "../text/visible";
import { piecesOf } from "./found";

export function Search({ onClose }: { onClose: () => void }) {
  const [words, setWords] = useState("");
  const [chosen, setChosen] = useState(0);
  const wanted = useDeferredValue(words.trim());
  const { data, error, isFetching } = useQuery({
    queryKey: ["search", wanted],
    queryFn: async () => {
      const { data: found } = await told(server.GET("/v1/search", { params: { query: { q: wanted, limit: 30 } } }));
      return { found, by: wanted };
    },
    enabled: wanted !== "",
    placeholderData: (before) => before,
  });
  const hits = wanted === "" ? [] : (data?.found ?? []).filter((each) => each.session_id !== null);
  const open = (hit: Hit | undefined) => {
    if (hit === undefined) return;
    onClose();
    go(addressOf(hit));
  };
  const pressed = (event: KeyboardEvent) => {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step !== undefined) {
      event.preventDefault();
      setChosen(Math.max(0, Math.min(hits.length - 1, chosen + step)));
    }
    if (event.key === "Enter") open(hits[chosen]);
  };
  return (
    <Dialog title="Search" onClose={onClose}>
      <input
        type="search"
        aria-label="Words"
        placeholder={'Words, "a phrase", begin*, -without'}
        value={words}
        onKeyDown={pressed}
        onChange={(event) => {
          setWords(event.target.value);
          setChosen(0);
        }}
      />
      <Trouble error={error} />
      <ol className="hits">
        {hits.map((hit, at) => (
          <li key={`${hit.session_id} ${hit.message_id ?? hit.observation_id ?? at}`}>
            <button type="button" ref={at === chosen ? shown : null} className={at === chosen ? "hit chosen" : "hit"} onClick={() => open(hit)}>
              <Found hit={hit} by={data?.by ?? wanted} />
            </button>
          </li>
        ))}
      </ol>
      {wanted !== "" && !isFetching && hits.length === 0 && <p className="hint">Nothing has these words.</p>}
    </Dialog>
  );
}

function shown(entry: HTMLElement | null): void {
  entry?.scrollIntoView({ block: "nearest" });
}

function addressOf(hit: Hit): string {
  const at = hit.message_sequence === null ? "" : `?at=${hit.message_sequence}`;
  return `/sessions/${hit.session_id}${at}`;
}

function Found({ hit, by }: { hit: Hit; by: string }) {
  const now = useNow();
  const session = useQuery({ ...sessionQuery(hit.session_id ?? ""), enabled: hit.session_id !== null, staleTime: 60_000 }).data;
  return (
    <>
      <span className="hit-where">
        <b>{session?.title ? visible(session.title) : session ? "Untitled" : "…"}</b> · {hit.role ?? "title"} · {ago(hit.created_at, now)}
      </span>
      <span>{piecesOf(visible(hit.snippet), by).map(({ text, isFound }, at) => (isFound ? <mark key={at}>{text}</mark> : text))}</span>
    </>
  );
}
