/** Parses the data of events, which are untyped: every value is checked before use. */
import type { Usage } from "../api/types";

export interface PlanStep {
  readonly content: string;
  readonly priority: string;
  readonly status: string;
}

export type Fields = Readonly<Record<string, unknown>>;

export function asText(value: unknown): string {
  return typeof value === "string" ? value : "";
}

export function asNumber(value: unknown): number {
  return typeof value === "number" ? value : 0;
}

export function asFields(value: unknown): Fields | null {
  return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Fields) : null;
}

export function parseError(value: unknown): { code: string; message: string } {
  const fields = asFields(value);
  return { code: asText(fields?.["code"]) || "error", message: asText(fields?.["message"]) };
}

export function parseUsage(value: unknown): Usage | null {
  const fields = asFields(value);
  if (fields === null) return null;
  return {
    input_tokens: asNumber(fields["input_tokens"]),
    cached_input_tokens: asNumber(fields["cached_input_tokens"]),
    output_tokens: asNumber(fields["output_tokens"]),
    reasoning_tokens: asNumber(fields["reasoning_tokens"]),
  };
}

/** Parse the steps of a plan, from an event or from a part of a message. */
export function parsePlan(value: unknown): PlanStep[] {
  if (!Array.isArray(value)) return [];
  return value.flatMap((each: unknown) => {
    const step = asFields(each);
    if (step === null) return [];
    return [
      {
        content: asText(step["content"]) || asText(step["text"]),
        priority: asText(step["priority"]),
        status: asText(step["status"]),
      },
    ];
  });
}
