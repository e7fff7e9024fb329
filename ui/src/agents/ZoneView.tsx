/** The active zone of an agent, and its archives. */
import { useMutation, useQuery } from "@tanstack/react-query";

import { server, unwrap } from "../api/client";
import { queryClient } from "../api/queries";
import type { Archive } from "../api/types";
import { Link } from "../app/Link";
import { ErrorMessage } from "../app/notices";
import { formatBytes, formatDateTime } from "../text/format";
import { escapeInvisible } from "../text/invisible";

const MAX_REPLAY_LINES = 20;

export function ZoneView({ id }: { id: string }) {
  const path = { definition_id: id };
  const zone = useQuery({
    queryKey: ["zone", id],
    queryFn: () => unwrap(server.GET("/v1/zones/{definition_id}", { params: { path } })),
  });
  const archives = useQuery({
    queryKey: ["zone", id, "archives"],
    queryFn: () => unwrap(server.GET("/v1/zones/{definition_id}/archives", { params: { path } })),
  });
  const archiveZone = useMutation({
    mutationFn: () => unwrap(server.POST("/v1/zones/{definition_id}/archive", { params: { path } })),
    onSettled: () => queryClient.invalidateQueries({ queryKey: ["zone", id] }),
  });
  const files = zone.data?.files ?? [];
  return (
    <section className="zone" aria-labelledby="zone-title">
      <h2 id="zone-title">Active zone</h2>
      {zone.data?.session_id && (
        <p>
          In use by <Link to={`/sessions/${zone.data.session_id}`}>a session</Link>.
        </p>
      )}
      {files.length === 0 ? (
        <p className="hint">The zone is empty. Output that a program keeps for its next start is shown here.</p>
      ) : (
        <ul className="files">
          {files.map((file) => (
            <li key={file.name}>
              <a href={`/v1/zones/${id}/files/${encodeURIComponent(file.name)}`} download>
                {escapeInvisible(file.name)}
              </a>
              <span className="muted">
                {formatBytes(file.size)}, {file.lines} lines, {formatDateTime(new Date(file.modified_ms).toISOString())}
              </span>
            </li>
          ))}
        </ul>
      )}
      {files.length > 0 && zone.data?.session_id === null && <ZoneReplay id={id} />}
      {files.length > 0 && (
        <button type="button" disabled={archiveZone.isPending} onClick={() => archiveZone.mutate()}>
          Archive zone
        </button>
      )}
      <ErrorMessage error={zone.error ?? archives.error ?? archiveZone.error} />
      {(archives.data?.data.length ?? 0) > 0 && <h2>Archives</h2>}
      <ul className="archives">
        {archives.data?.data.map((archive) => (
          <ArchiveEntry key={archive.archived_at_ms} id={id} archive={archive} />
        ))}
      </ul>
    </section>
  );
}

/** The last lines of the stored output; while a session uses the zone, the session itself shows them. */
function ZoneReplay({ id }: { id: string }) {
  const params = { path: { definition_id: id }, query: { window: MAX_REPLAY_LINES, page: MAX_REPLAY_LINES } };
  const { data } = useQuery({
    queryKey: ["zone", id, "replay"],
    queryFn: () => unwrap(server.GET("/v1/zones/{definition_id}/replay", { params })),
  });
  if (data === undefined || (data.lines.length === 0 && data.nodes.length === 0)) return null;
  const lines = data.lines.length > 0 ? data.lines : data.nodes.map((node) => JSON.stringify(node));
  return (
    <figure className="code replay">
      <figcaption>
        Last {lines.length} of {Math.max(data.total, lines.length)}
        {data.problem && <span> ({data.problem.replaceAll("_", " ")})</span>}
      </figcaption>
      <pre tabIndex={0}>{escapeInvisible(lines.join("\n"))}</pre>
    </figure>
  );
}

function ArchiveEntry({ id, archive }: { id: string; archive: Archive }) {
  const restore = useMutation({
    mutationFn: () =>
      unwrap(
        server.POST("/v1/zones/{definition_id}/archives/{ms}/restore", {
          params: { path: { definition_id: id, ms: String(archive.archived_at_ms) } },
        }),
      ),
    onSettled: () => queryClient.invalidateQueries({ queryKey: ["zone", id] }),
  });
  return (
    <li>
      <span>
        <time dateTime={new Date(archive.archived_at_ms).toISOString()}>{formatDateTime(new Date(archive.archived_at_ms).toISOString())}</time>{" "}
        <span className="muted">
          {formatBytes(archive.size)}, {archive.lines} lines
        </span>
      </span>
      {archive.preview && <p className="preview">{escapeInvisible(archive.preview)}</p>}
      <button type="button" disabled={restore.isPending} onClick={() => restore.mutate()}>
        Restore
      </button>
      <ErrorMessage error={restore.error} />
    </li>
  );
}
