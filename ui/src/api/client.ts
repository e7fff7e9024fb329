/** The HTTP client, typed by the OpenAPI schema, and its errors. */
import createClient from "openapi-fetch";

import type { paths } from "./schema";

/** An error response; its message is the one of the server. Status 0: no response. */
export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
    readonly details: Readonly<Record<string, unknown>> = {},
  ) {
    super(message);
  }

  /** The invalid field of the request, if the server names one. */
  get field(): string | null {
    const { field, path, fields } = this.details;
    const named = [field, path, Array.isArray(fields) ? (fields as unknown[])[0] : null].find((each) => typeof each === "string");
    return named === undefined ? null : (named as string).replace(/[.[].*$/, "");
  }

  get isUnauthorized(): boolean {
    return this.status === 401;
  }

  get isNotFound(): boolean {
    return this.status === 404;
  }
}

const UNREACHABLE = "The server does not respond. Is `holdfast serve` still running? This page retries automatically.";

export const server = createClient<paths>({
  baseUrl: "/",
  fetch: async (request) => {
    try {
      return await fetch(request);
    } catch {
      throw new ApiError(0, "unreachable", UNREACHABLE);
    }
  },
});

interface ApiResponse<T> {
  data?: T;
  error?: unknown;
  response: Response;
}

/** Return the data of a response, or throw its error. */
export async function unwrap<T>(request: Promise<ApiResponse<T>>): Promise<T> {
  const { data, error, response } = await request;
  if (response.ok) return data as T;
  throw toApiError(response.status, error);
}

function toApiError(status: number, body: unknown): ApiError {
  if (typeof body === "object" && body !== null && "error" in body && "message" in body) {
    const details = "details" in body && typeof body.details === "object" ? body.details : null;
    return new ApiError(status, String(body.error), String(body.message), { ...details });
  }
  return new ApiError(status, "unreadable", `The server responded with status ${status} and no readable error.`);
}

/** Mutation options for a request with an idempotency id: retry until the server responds. */
export const RETRY_UNTIL_ANSWERED = {
  networkMode: "always" as const,
  retry: (_: number, error: unknown) => error instanceof ApiError && error.status === 0,
  retryDelay: 1_500,
};

/** Return a new id; a request that carries it is idempotent and can be sent again. */
export function newId(): string {
  return crypto.randomUUID();
}
