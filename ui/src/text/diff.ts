/** Parses unified diffs and computes line diffs. */

export type LineKind = "added" | "removed" | "same" | "hunk";

export interface DiffLine {
  readonly kind: LineKind;
  readonly text: string;
}

const LINE_KINDS: Readonly<Record<string, LineKind>> = { "+": "added", "-": "removed", " ": "same", "@": "hunk", "\\": "hunk" };
const HEADERS = /^(diff --git|index |--- |\+\+\+ |new file|deleted file|similarity|rename )/;
// The comparison is quadratic; larger texts are shown as fully removed and added.
const MAX_COMPARED_LINES = 1_500;

/** Whether a text is a unified diff. */
export function isDiff(text: string): boolean {
  return /^@@ -\d+(,\d+)? \+\d+(,\d+)? @@/m.test(text);
}

export function parseDiff(text: string): DiffLine[] {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  return lines.map((line) => {
    if (HEADERS.test(line)) return { kind: "hunk", text: line };
    const kind = LINE_KINDS[line[0] ?? " "];
    if (kind === undefined || kind === "hunk") return { kind: kind ?? "same", text: line };
    return { kind, text: line.slice(1) };
  });
}

/** Return the changed lines between two texts, with lines of context. */
export function diffLines(before: string, after: string, context = 3): DiffLine[] {
  const [old, now] = [splitLines(before), splitLines(after)];
  let top = 0;
  while (top < old.length && top < now.length && old[top] === now[top]) top += 1;
  let bottom = 0;
  const shortest = Math.min(old.length, now.length) - top;
  while (bottom < shortest && old[old.length - 1 - bottom] === now[now.length - 1 - bottom]) bottom += 1;
  const middle = compareLines(old.slice(top, old.length - bottom), now.slice(top, now.length - bottom));
  const above = old.slice(Math.max(0, top - context), top).map(same);
  const below = old.slice(old.length - bottom, old.length - bottom + context).map(same);
  return middle.length === 0 ? [] : [...above, ...middle, ...below];
}

function splitLines(text: string): string[] {
  const lines = text.split("\n");
  // A final line feed does not start another line.
  if (lines.at(-1) === "") lines.pop();
  return lines;
}

const same = (text: string): DiffLine => ({ kind: "same", text });
const removed = (text: string): DiffLine => ({ kind: "removed", text });
const added = (text: string): DiffLine => ({ kind: "added", text });

function compareLines(old: string[], now: string[]): DiffLine[] {
  if (old.length * now.length > MAX_COMPARED_LINES ** 2) return [...old.map(removed), ...now.map(added)];
  const width = now.length + 1;
  // Length of the longest common subsequence of the lines from (i, j) on.
  const common = new Uint16Array((old.length + 1) * width);
  const at = (i: number, j: number): number => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = now.length - 1; j >= 0; j -= 1) {
      common[i * width + j] = old[i] === now[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
    }
  }
  const lines: DiffLine[] = [];
  let i = 0;
  let j = 0;
  while (i < old.length || j < now.length) {
    if (i < old.length && j < now.length && old[i] === now[j]) {
      lines.push(same(old[i] ?? ""));
      i += 1;
      j += 1;
    } else if (j >= now.length || (i < old.length && at(i + 1, j) >= at(i, j + 1))) {
      lines.push(removed(old[i] ?? ""));
      i += 1;
    } else {
      lines.push(added(now[j] ?? ""));
      j += 1;
    }
  }
  return lines;
}
