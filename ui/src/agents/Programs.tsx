/** Known ACP programs, installed or not, on the machine of the server. */
import { useQuery } from "@tanstack/react-query";

import { server, unwrap } from "../api/client";
import type { KnownProgram } from "../api/types";
import { EMPTY_DRAFT, type AgentDraft } from "./draft";

interface Props {
  readonly onChoose: (draft: AgentDraft, program: KnownProgram) => void;
}

export function Programs({ onChoose }: Props) {
  const { data } = useQuery({ queryKey: ["programs"], queryFn: () => unwrap(server.GET("/v1/programs")), staleTime: 60_000 });
  if (data === undefined) return null;
  const installed = data.data.filter((each) => each.path !== null);
  const missing = data.data.filter((each) => each.path === null);
  return (
    <section className="programs" aria-labelledby="programs-title">
      <h2 id="programs-title">Programs on this machine</h2>
      {installed.length === 0 && <p className="hint">No known program is installed. Each one below is installed with one command.</p>}
      <ul>
        {installed.map((each) => (
          <li key={each.preset}>
            <b>{each.title}</b>
            <span className="muted">{each.version ?? "version unknown"}</span>
            <span className="spacer" />
            <button type="button" onClick={() => onChoose(draftFromProgram(each), each)}>
              Use<span className="visually-hidden"> {each.title}</span>
            </button>
          </li>
        ))}
      </ul>
      <details className="collapsible">
        <summary>{missing.length} more can be installed</summary>
        <ul>
          {missing.map((each) => (
            <li key={each.preset}>
              <b>{each.title}</b>
              <code>{each.install}</code>
            </li>
          ))}
        </ul>
      </details>
    </section>
  );
}

function draftFromProgram({ title, preset, runtime }: KnownProgram): AgentDraft {
  return {
    ...EMPTY_DRAFT,
    name: title,
    slug: preset,
    kind: "acp",
    command: runtime.command,
    args: runtime.args?.join("\n") ?? "",
    variables: runtime.env_names?.join("\n") ?? "",
    fileAccess: "",
  };
}
