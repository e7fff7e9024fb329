/** The one way to ask the server: typed by its own description, refused in its own words. */
import createClient from "openapi-fetch";

import type { paths } from "./schema";

/** What the server refused, and why; `remedy` says what a person can do where that is known. */
export class Refusal extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }

  get isSignedOut(): boolean {
    return this.status === 401;
  }

  get isMissing(): boolean {
    return this.status === 404;
  }
}

const UNREACHABLE = new Refusal(
  0,
  "unreachable",
  "The server does not answer. Is `holdfast serve` still running? This page tries again by itself.",
);

export const server = createClient<paths>({
  baseUrl: "/",
  fetch: async (request) => {
    try {
      return await fetch(request);
    } catch {
      throw UNREACHABLE;
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
    return new Refusal(status, String(body.error), String(body.message));
  }
  return new Refusal(status, "unreadable", `The server answered with ${status} and nothing that can be read.`);
}

/** Return an id that makes a request repeatable: sent twice, it is done once. */
export function newId(): string {
  return crypto.randomUUID();
}
