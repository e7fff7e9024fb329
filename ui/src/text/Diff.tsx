/** Shows the lines of a diff. */
import type { DiffLine } from "./diff";
import { escapeInvisible } from "./invisible";

const SIGNS = { added: "+", removed: "−", same: " ", hunk: " " } as const;
const MAX_LINES = 2_000;

interface Props {
  readonly lines: readonly DiffLine[];
  readonly name?: string;
  /** An approval must show the whole change: a hidden line could be the harmful one. */
  readonly showAll?: boolean;
}

export function Diff({ lines, name, showAll = false }: Props) {
  const shown = showAll ? lines : lines.slice(0, MAX_LINES);
  const added = lines.filter((line) => line.kind === "added").length;
  const removed = lines.filter((line) => line.kind === "removed").length;
  return (
    <figure className="code diff">
      <figcaption>
        <span>{name ?? "changes"}</span>
        <span className="diff-stat">
          <b className="added">+{added}</b> <b className="removed">−{removed}</b>
        </span>
      </figcaption>
      <pre tabIndex={0}>
        {shown.map((line, index) => (
          <span key={index} className={`line ${line.kind}`}>
            <span className="sign" aria-hidden="true">
              {SIGNS[line.kind]}
            </span>
            {escapeInvisible(line.text) || " "}
            {"\n"}
          </span>
        ))}
        {lines.length > shown.length && `… ${lines.length - shown.length} more lines\n`}
      </pre>
    </figure>
  );
}
