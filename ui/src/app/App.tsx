/** The layout: a list column and a content column. */
import { useQuery } from "@tanstack/react-query";
import { lazy, Suspense, useMemo, useState } from "react";

import { ApiError } from "../api/client";
import { defaultsQuery } from "../api/queries";
import { SessionPage } from "../session/SessionPage";
import { TimeRedirect } from "../session/TimeRedirect";
import { NewSession } from "../sessions/NewSession";
import { Search } from "../sessions/Search";
import { SessionList } from "../sessions/SessionList";
import { Help } from "./Help";
import { Link } from "./Link";
import { Logo } from "./Logo";
import { parseMessageNumber, type Route } from "./route";
import { navigate, useRoute } from "./router";
import { useShortcuts } from "./shortcuts";
import { SignedOut } from "./SignedOut";
import { applyTheme, currentTheme, nextTheme } from "./theme";

// Loaded on demand, to keep the bundle of a session small.
const AgentList = lazy(() => import("../agents/AgentList"));
const AgentPage = lazy(() => import("../agents/AgentPage"));
const TimelinePage = lazy(() => import("../timeline/TimelinePage"));

type Overlay = "search" | "help" | null;

export function App() {
  const route = useRoute();
  const [overlay, setOverlay] = useState<Overlay>(null);
  const defaults = useQuery(defaultsQuery);
  const shortcuts = useMemo(
    () => ({
      "/": () => setOverlay("search"),
      "?": () => setOverlay("help"),
      n: () => navigate("/sessions?new"),
      "g s": () => navigate("/sessions"),
      "g a": () => navigate("/agents"),
      "g t": () => navigate("/timeline"),
    }),
    [],
  );
  useShortcuts(shortcuts);
  if (defaults.error instanceof ApiError && defaults.error.isUnauthorized) return <SignedOut />;
  return (
    <div className={showsContent(route) ? "app detail" : "app"}>
      <a className="skip" href="#main">
        Skip to content
      </a>
      <aside>
        <TopBar route={route} onSearch={() => setOverlay("search")} onHelp={() => setOverlay("help")} />
        <Suspense>{route.section === "agents" ? <AgentList current={route.id} /> : <SessionList current={route.id} />}</Suspense>
      </aside>
      <main id="main" tabIndex={-1}>
        <Suspense fallback={<p className="loading">…</p>}>
          <Content route={route} />
        </Suspense>
      </main>
      {overlay === "search" && <Search onClose={() => setOverlay(null)} />}
      {overlay === "help" && <Help onClose={() => setOverlay(null)} />}
    </div>
  );
}

function Content({ route }: { route: Route }) {
  if (route.section === "timeline") return <TimelinePage />;
  if (route.section === "agents") return <AgentPage key={route.id ?? ""} id={route.id} isNew={route.query.has("new")} />;
  if (route.id === null) return <NewSession agent={route.query.get("agent")} autoFocus={route.query.has("new")} />;
  const time = route.query.get("time");
  if (time !== null) return <TimeRedirect key={route.id} id={route.id} time={time} />;
  return <SessionPage key={route.id} id={route.id} at={parseMessageNumber(route)} />;
}

/** Whether a narrow screen shows the content column instead of the list. */
function showsContent(route: Route): boolean {
  return route.id !== null || route.section === "timeline" || route.query.has("new");
}

interface TopBarProps {
  readonly route: Route;
  readonly onSearch: () => void;
  readonly onHelp: () => void;
}

function TopBar({ route, onSearch, onHelp }: TopBarProps) {
  const [theme, setTheme] = useState(currentTheme);
  const switchTheme = () => {
    const next = nextTheme(theme);
    applyTheme(next);
    setTheme(next);
  };
  return (
    <header className="top">
      <div className="brand">
        <Link to="/sessions" label="Holdfast">
          <Logo />
          <span>Holdfast</span>
        </Link>
        <span className="spacer" />
        <button type="button" className="quiet" onClick={onSearch} title="Search (/)">
          Search <kbd>/</kbd>
        </button>
        <button type="button" className="quiet icon" onClick={switchTheme} title={`Theme: ${theme}`} aria-label={`Theme: ${theme}`}>
          {{ system: "◐", light: "○", dark: "●" }[theme]}
        </button>
        <button type="button" className="quiet icon" onClick={onHelp} title="Keyboard shortcuts (?)" aria-label="Keyboard shortcuts">
          ?
        </button>
      </div>
      <nav aria-label="Sections">
        <Link to="/sessions" isCurrent={route.section === "sessions"}>
          Sessions
        </Link>
        <Link to="/agents" isCurrent={route.section === "agents"}>
          Agents
        </Link>
        <Link to="/timeline" isCurrent={route.section === "timeline"}>
          Timeline
        </Link>
      </nav>
    </header>
  );
}
