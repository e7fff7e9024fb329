/** The frame: one column to find things, one to read and write. */
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useMemo, useState } from "react";

import { Refusal } from "../api/client";
import { defaultsQuery } from "../api/queries";
import { SessionPage } from "../session/SessionPage";
import { Moment } from "../session/Moment";
import { NewSession } from "../sessions/NewSession";
import { Search } from "../sessions/Search";
import { SessionList } from "../sessions/SessionList";
import { Help } from "./Help";
import { useKeys } from "./keys";
import { Link } from "./Link";
import { Mark } from "./Mark";
import { messageOf, type Place } from "./place";
import { go, usePlace } from "./router";
import { SignedOut } from "./SignedOut";
import { applyTheme, currentTheme, nextTheme } from "./theme";

// Read when somebody goes there: a conversation does not wait for them.
const AgentList = lazy(() => import("../agents/AgentList"));
const AgentPage = lazy(() => import("../agents/AgentPage"));
const TimelinePage = lazy(() => import("../timeline/TimelinePage"));

type Open = "search" | "help" | null;

export function App() {
  const place = usePlace();
  const [open, setOpen] = useState<Open>(null);
  const defaults = useQuery(defaultsQuery);
  const keys = useMemo(
    () => ({
      "/": () => setOpen("search"),
      "?": () => setOpen("help"),
      n: () => go("/sessions?new"),
      "g s": () => go("/sessions"),
      "g a": () => go("/agents"),
      "g t": () => go("/timeline"),
    }),
    [],
  );
  useKeys(keys);
  if (defaults.error instanceof Refusal && defaults.error.isSignedOut) return <SignedOut />;
  return (
    <div className={isReading(place) ? "app reading" : "app"}>
      <a className="skip" href="#main">
        Skip to the content
      </a>
      <aside>
        <Top place={place} onSearch={() => setOpen("search")} onHelp={() => setOpen("help")} />
        <Suspense>{place.section === "agents" ? <AgentList current={place.id} /> : <SessionList current={place.id} />}</Suspense>
      </aside>
      <main id="main" tabIndex={-1}>
        <Suspense fallback={<p className="wait">…</p>}>
          <Content place={place} />
        </Suspense>
      </main>
      {open === "search" && <Search onClose={() => setOpen(null)} />}
      {open === "help" && <Help onClose={() => setOpen(null)} />}
    </div>
  );
}

function Content({ place }: { place: Place }) {
  if (place.section === "timeline") return <TimelinePage />;
  if (place.section === "agents") return <AgentPage key={place.id ?? ""} id={place.id} isNew={place.query.has("new")} />;
  if (place.id === null) return <NewSession agent={place.query.get("agent")} isAsked={place.query.has("new")} />;
  const time = place.query.get("time");
  if (time !== null) return <Moment key={place.id} id={place.id} time={time} />;
  return <SessionPage key={place.id} id={place.id} at={messageOf(place)} />;
}

/** On a narrow screen there is room for one column: the one that was asked for. */
function isReading(place: Place): boolean {
  return place.id !== null || place.section === "timeline" || place.query.has("new");
}

interface TopProps {
  readonly place: Place;
  readonly onSearch: () => void;
  readonly onHelp: () => void;
}

function Top({ place, onSearch, onHelp }: TopProps) {
  const [theme, setTheme] = useState(currentTheme);
  const turn = () => {
    const next = nextTheme(theme);
    applyTheme(next);
    setTheme(next);
  };
  return (
    <header className="top">
      <div className="brand">
        <Link to="/sessions" label="Holdfast">
          <Mark />
          <span>Holdfast</span>
        </Link>
        <span className="spread" />
        <button type="button" className="quiet" onClick={onSearch} title="Search (/)">
          Search <kbd>/</kbd>
        </button>
        <button type="button" className="quiet icon" onClick={turn} title={`Colours: ${theme}`} aria-label={`Colours: ${theme}`}>
          {{ system: "◐", light: "○", dark: "●" }[theme]}
        </button>
        <button type="button" className="quiet icon" onClick={onHelp} title="Keys (?)" aria-label="Keys">
          ?
        </button>
      </div>
      <nav aria-label="Sections">
        <Link to="/sessions" isCurrent={place.section === "sessions"}>
          Sessions
        </Link>
        <Link to="/agents" isCurrent={place.section === "agents"}>
          Agents
        </Link>
        <Link to="/timeline" isCurrent={place.section === "timeline"}>
          What happened
        </Link>
      </nav>
    </header>
  );
}
