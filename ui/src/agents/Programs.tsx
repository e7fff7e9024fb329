/** Agents that somebody else wrote, as far as they are on the server's machine. */
import { useQuery } from "@tanstack/react-query";

import { server, told } from "../api/client";
import type { KnownProgram } from "../api/forms";
import { EMPTY, type AgentDraft } from "./draft";

interface Props {
  readonly onChoose: (draft: AgentDraft, program: KnownProgram) => void;
}

export function Programs({ onChoose }: Props) {
  const { data } = useQuery({ queryKey: ["programs"], queryFn: () => told(server.GET("/v1/programs")), staleTime: 60_000 });
  if (data === undefined) return null;
  const there = data.data.filter((each) => each.path !== null);
  const missing = data.data.filter((each) => each.path === null);
  return (
    <section className="programs" aria-labelledby="programs-title">
      <h2 id="programs-title">Programs on this machine</h2>
      {there.length === 0 && <p className="hint">None that is known. Each of those below is one command away.</p>}
      <ul>
        {there.map((each) => (
          <li key={each.preset}>
            <b>{each.title}</b>
            <span className="faint">{each.version ?? "version unknown"}</span>
            <span className="spread" />
            <button type="button" onClick={() => onChoose(draftOfProgram(each), each)}>
              Use<span className="unseen"> {each.title}</span>
            </button>
          </li>
        ))}
      </ul>
      <details className="fold">
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

function draftOfProgram({ title, preset, runtime }: KnownProgram): AgentDraft {
  return {
    ...EMPTY,
    name: title,
    slug: preset,
    kind: "acp",
    command: runtime.command,
    args: runtime.args?.join("\n") ?? "",
    variables: runtime.env_names?.join("\n") ?? "",
    reach: "",
  };
}
