/** Line differences. */
import type { DiffLine } from "./diff";
import { visible } from "./visible";

const SIGNS = { added: "+", removed: "−", same: " ", place: " " } as const;
const SHOWN_MOST = 2_000;

interface Props {
  readonly lines: readonly DiffLine[];
  readonly name?: string;
  /** Whoever decides by it must see all of it. */
  readonly isWhole?: boolean;
}

export function Diff({ lines, name, isWhole = false }: Props) {
  const shown = isWhole ? lines : lines.slice(0, SHOWN_MOST);
  const added = lines.filter((line) => line.mark === "added").length;
  const removed = lines.filter((line) => line.mark === "removed").length;
  return (
    <figure className="code diff">
      <figcaption>
        <span>{name ?? "changes"}</span>
        <span className="diff-sum">
          <b className="added">+{added}</b> <b className="removed">−{removed}</b>
        </span>
      </figcaption>
      <pre tabIndex={0}>
        {shown.map((line, at) => (
          <span key={at} className={`line ${line.mark}`}>
            <span className="sign" aria-hidden="true">
              {SIGNS[line.mark]}
            </span>
            {visible(line.text) || " "}
            {"\n"}
          </span>
        ))}
        {lines.length > shown.length && `… ${lines.length - shown.length} more lines\n`}
      </pre>
    </figure>
  );
}
