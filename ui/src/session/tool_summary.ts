/** One-line summaries of tool calls, and the file changes that they contain. */
import { diffLines, isDiff, parseDiff, type DiffLine } from "../text/diff";
import { asFields, asText, type Fields } from "./event_data";

// The first of these arguments that a call has is its summary.
const SUMMARY_FIELDS = ["command", "pattern", "query", "path", "file_path", "filePath", "url", "message", "title", "name"];
const MAX_SUMMARY_LENGTH = 160;

/** Summarize a call on one line. */
export function summarizeCall(args: Fields): string {
  const name = SUMMARY_FIELDS.find((each) => typeof args[each] === "string");
  if (name === undefined) return Object.keys(args).length === 0 ? "" : shorten(JSON.stringify(args));
  const rest = args["args"];
  const line = [args[name], ...(Array.isArray(rest) ? (rest as unknown[]) : [])].map(String).join(" ");
  return shorten(line);
}

/** Summarize a result on one line. */
export function summarizeResult(result: unknown): string {
  return result === null || result === undefined ? "" : shorten(typeof result === "string" ? result : JSON.stringify(result));
}

function shorten(text: string): string {
  const line = text.replace(/\s+/g, " ").trim();
  return line.length > MAX_SUMMARY_LENGTH ? `${line.slice(0, MAX_SUMMARY_LENGTH)}…` : line;
}

export interface Change {
  readonly path: string;
  readonly lines: readonly DiffLine[];
}

/** Return the file changes of a call, from its arguments or its result. */
export function fileChanges(name: string, args: Fields, result: unknown): Change[] {
  const reported = asFields(result)?.["diffs"];
  if (Array.isArray(reported)) return (reported as unknown[]).flatMap(parseChange);
  const path = asText(args["path"]);
  if (name === "edit_file") {
    return [{ path, lines: diffLines(asText(args["old"]), asText(args["new"])) }];
  }
  if (name === "write_file") return [{ path, lines: diffLines("", asText(args["content"])) }];
  return [];
}

function parseChange(value: unknown): Change[] {
  const fields = asFields(value);
  if (fields === null) return [];
  const lines = diffLines(asText(fields["old_text"]), asText(fields["new_text"]));
  return [{ path: asText(fields["path"]), lines }];
}

/** Format a result: its text if it consists of text fields, otherwise JSON. */
export function formatResult(result: unknown): string {
  if (typeof result === "string") return result;
  const fields = asFields(result);
  const texts = ["stdout", "stderr", "output", "content", "text"].map((name) => asText(fields?.[name])).filter(Boolean);
  const isOnlyText = fields !== null && Object.keys(fields).length <= texts.length;
  if (isOnlyText && texts.length > 0) return texts.join("\n");
  return JSON.stringify(result, null, 2) ?? "";
}

/** Split an approval question into its first line and the diff that may follow. */
export function splitQuestion(text: string): { head: string; lines: DiffLine[] | null } {
  const [head = "", ...rest] = text.split("\n");
  const body = rest.join("\n");
  const isChange = isDiff(body) || (rest.length > 0 && rest.every((line) => /^[+\\]/.test(line)));
  return isChange ? { head, lines: parseDiff(body) } : { head: text, lines: null };
}
