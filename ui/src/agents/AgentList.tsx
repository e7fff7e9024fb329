/** All agents, by name. */
import { useQuery } from "@tanstack/react-query";
import { useState } from "react";

import { agentsQuery } from "../api/queries";
import { Link } from "../app/Link";
import { ErrorMessage } from "../app/notices";
import { escapeInvisible } from "../text/invisible";

export default function AgentList({ current }: { current: string | null }) {
  const [showArchived, setShowArchived] = useState(false);
  const { data, error } = useQuery(agentsQuery(showArchived ? "all" : "active"));
  const agents = (data?.data ?? []).toSorted((a, b) => a.name.localeCompare(b.name));
  return (
    <>
      <div className="filters agent-filters">
        <label className="inline-field">
          <input type="checkbox" checked={showArchived} onChange={(event) => setShowArchived(event.target.checked)} />
          Show archived
        </label>
        <Link to="/agents?new" className="button primary">
          New
        </Link>
      </div>
      <ErrorMessage error={error} />
      <ul className="list" aria-label="Agents">
        {agents.map((agent) => (
          <li key={agent.id}>
            <Link to={`/agents/${agent.slug}`} className="entry" isCurrent={current === agent.slug || current === agent.id}>
              <span className="entry-title">{escapeInvisible(agent.name)}</span>
              <span className="entry-cost">{agent.runtime.type === "acp" ? "program" : "model"}</span>
              <span className="entry-facts">
                <span>{agent.slug}</span>
                {agent.status === "archived" && <span>archived</span>}
                {agent.tags.length > 0 && <span>{escapeInvisible(agent.tags.join(", "))}</span>}
              </span>
            </Link>
          </li>
        ))}
      </ul>
      {data && agents.length === 0 && (
        <p className="hint">No agents yet except the built-in one. An agent is a prompt and a model, or a program.</p>
      )}
    </>
  );
}
