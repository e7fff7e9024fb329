/** What lies on an agent's desk, and what was cleared from it. */
import { useMutation, useQuery } from "@tanstack/react-query";

import { server, told } from "../api/client";
import type { Archive } from "../api/forms";
import { queries } from "../api/queries";
import { Link } from "../app/Link";
import { Trouble } from "../app/Notice";
import { bytes, wholeTime } from "../text/format";
import { visible } from "../text/visible";

const SHOWN = 20;

export function DeskView({ id }: { id: string }) {
  const path = { definition_id: id };
  const desk = useQuery({
    queryKey: ["desk", id],
    queryFn: () => told(server.GET("/v1/zones/{definition_id}", { params: { path } })),
  });
  const archives = useQuery({
    queryKey: ["desk", id, "archives"],
    queryFn: () => told(server.GET("/v1/zones/{definition_id}/archives", { params: { path } })),
  });
  const clear = useMutation({
    mutationFn: () => told(server.POST("/v1/zones/{definition_id}/archive", { params: { path } })),
    onSettled: () => queries.invalidateQueries({ queryKey: ["desk", id] }),
  });
  const files = desk.data?.files ?? [];
  return (
    <section className="desk" aria-labelledby="desk-title">
      <h2 id="desk-title">Desk</h2>
      {desk.data?.session_id && (
        <p>
          <Link to={`/sessions/${desk.data.session_id}`}>A session</Link> sits at it.
        </p>
      )}
      {files.length === 0 ? (
        <p className="hint">Nothing lies on it. What a program leaves for its next start shows here.</p>
      ) : (
        <ul className="files">
          {files.map((file) => (
            <li key={file.name}>
              <a href={`/v1/zones/${id}/files/${encodeURIComponent(file.name)}`} download>
                {visible(file.name)}
              </a>
              <span className="faint">
                {bytes(file.size)}, {file.lines} lines, {wholeTime(new Date(file.modified_ms).toISOString())}
              </span>
            </li>
          ))}
        </ul>
      )}
      {files.length > 0 && desk.data?.session_id === null && <Left id={id} />}
      {files.length > 0 && (
        <button type="button" disabled={clear.isPending} onClick={() => clear.mutate()}>
          Clear it into an archive
        </button>
      )}
      <Trouble error={desk.error ?? archives.error ?? clear.error} />
      {(archives.data?.data.length ?? 0) > 0 && <h2>Archives</h2>}
      <ul className="archives">
        {archives.data?.data.map((archive) => (
          <ArchiveEntry key={archive.archived_at_ms} id={id} archive={archive} />
        ))}
      </ul>
    </section>
  );
}

/** What was left on the desk by whoever sat there last; a session that sits there shows itself. */
function Left({ id }: { id: string }) {
  const params = { path: { definition_id: id }, query: { window: SHOWN, page: SHOWN } };
  const { data } = useQuery({
    queryKey: ["desk", id, "replay"],
    queryFn: () => told(server.GET("/v1/zones/{definition_id}/replay", { params })),
  });
  if (data === undefined || (data.lines.length === 0 && data.nodes.length === 0)) return null;
  const lines = data.lines.length > 0 ? data.lines : data.nodes.map((node) => JSON.stringify(node));
  return (
    <figure className="code left">
      <figcaption>
        the last {lines.length} of {Math.max(data.total, lines.length)}
        {data.problem && <span> ({data.problem.replaceAll("_", " ")})</span>}
      </figcaption>
      <pre tabIndex={0}>{visible(lines.join("\n"))}</pre>
    </figure>
  );
}

function ArchiveEntry({ id, archive }: { id: string; archive: Archive }) {
  const restore = useMutation({
    mutationFn: () =>
      told(
        server.POST("/v1/zones/{definition_id}/archives/{ms}/restore", {
          params: { path: { definition_id: id, ms: String(archive.archived_at_ms) } },
        }),
      ),
    onSettled: () => queries.invalidateQueries({ queryKey: ["desk", id] }),
  });
  return (
    <li>
      <span>
        <time dateTime={new Date(archive.archived_at_ms).toISOString()}>{wholeTime(new Date(archive.archived_at_ms).toISOString())}</time>{" "}
        <span className="faint">
          {bytes(archive.size)}, {archive.lines} lines
        </span>
      </span>
      {archive.preview && <p className="preview">{visible(archive.preview)}</p>}
      <button type="button" disabled={restore.isPending} onClick={() => restore.mutate()}>
        Restore
      </button>
      <Trouble error={restore.error} />
    </li>
  );
}
