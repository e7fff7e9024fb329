/** The one way to ask the server: typed by its own description, refused in its own words. */
import createClient from "openapi-fetch";

import type { paths } from "./schema";

/** What the server refused, and why; `remedy` says what a person can do where that is known. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }

  /** The field of the request that was refused, where the server names one. */
  get field(): string | null {
    const { field, path, fields } = this.details;
    const named = [field, path, Array.isArray(fields) ? (fields as unknown[])[0] : null].find((each) => typeof each === "string");
    return named === undefined ? null : (named as string).replace(/[.[].*$/, "");
  }

  get isSignedOut(): boolean {
    return this.status === 401;
  }

  get isMissing(): boolean {
    return this.status === 404;
  }
}

const UNREACHABLE = "The server does not answer. Is `holdfast serve` still running? This page tries again by itself.";

export const server = createClient<paths>({
  baseUrl: "/",
  fetch: async (request) => {
    try {
      return await fetch(request);
    } catch {
      throw new Refusal(0, "unreachable", UNREACHABLE);
    }
  },
});

interface Answered<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Return what was answered, or throw the refusal. */
export async function told<T>(asked: Promise<Answered<T>>): Promise<T> {
  const { data, error, response } = await asked;
  if (response.ok) return data as T;
  throw refusalOf(response.status, error);
}

function refusalOf(status: number, body: unknown): Refusal {
  if (typeof body === "object" && body !== null && "error" in body && "message" in body) {
    const details = "details" in body && typeof body.details === "object" ? body.details : null;
    return new Refusal(status, String(body.error), String(body.message), { ...details });
  }
  return new Refusal(status, "unreadable", `The server answered with ${status} and nothing that can be read.`);
}

/** How something with an id of its own is sent: again, until the server has answered it. */
export const UNTIL_ANSWERED = {
  networkMode: "always" as const,
  retry: (_: number, error: unknown) => error instanceof Refusal && error.status === 0,
  retryDelay: 1_500,
};

/** Return an id that makes a request repeatable: sent twice, it is done once. */
export function newId(): string {
  return crypto.randomUUID();
}
