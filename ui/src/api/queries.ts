/** What the page reads again and again, each under one key, so that nothing is asked twice. */
import { QueryClient, queryOptions } from "@tanstack/react-query";

import { Refusal, server, told } from "./client";
import { ASKED, type Standing } from "../sessions/standing";

const LIVE_MS = 2_000;
const CALM_MS = 30_000;
export const PAGE = 60;

export const queries = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1_000,
      // A refusal is an answer; only silence is asked again.
      retry: (count, error) => error instanceof Refusal && error.status === 0 && count < 2,
    },
  },
});

export interface SessionFilter {
  readonly standing: Standing | "";
  readonly agent: string;
  readonly words: string;
}

export function sessionsQuery(filter: SessionFilter, limit: number) {
  const query = {
    order: "updated_at" as const,
    limit,
    ...(filter.standing ? ASKED[filter.standing] : {}),
    ...(filter.words ? { q: filter.words } : {}),
  };
  return queryOptions({
    queryKey: ["sessions", filter, limit],
    queryFn: () =>
      filter.agent
        ? told(server.GET("/v1/agents/{agent_id}/sessions", { params: { path: { agent_id: filter.agent }, query } }))
        : told(server.GET("/v1/sessions", { params: { query } })),
    refetchInterval: LIVE_MS,
    placeholderData: (before) => before,
  });
}

export function sessionQuery(id: string) {
  return queryOptions({
    queryKey: ["session", id],
    queryFn: () => told(server.GET("/v1/sessions/{session_id}", { params: { path: { session_id: id } } })),
  });
}

export function approvalsQuery(id: string) {
  return queryOptions({
    queryKey: ["session", id, "approvals"],
    queryFn: () =>
      told(
        server.GET("/v1/sessions/{session_id}/approvals", {
          params: { path: { session_id: id }, query: { state: "waiting" } },
        }),
      ),
  });
}

/** Questions of all sessions: the list shows which of them wait for somebody. */
export const waitingQuery = queryOptions({
  queryKey: ["approvals", "waiting"],
  queryFn: () => told(server.GET("/v1/approvals", { params: { query: { state: "waiting" } } })),
  refetchInterval: LIVE_MS,
});

export function unknownCallsQuery(id: string) {
  return queryOptions({
    queryKey: ["session", id, "unknown"],
    queryFn: () =>
      told(
        server.GET("/v1/sessions/{session_id}/calls", {
          params: { path: { session_id: id }, query: { state: "unknown" } },
        }),
      ),
  });
}

export function agentsQuery(status: "active" | "archived" | "all" = "active") {
  return queryOptions({
    queryKey: ["agents", status],
    queryFn: () => told(server.GET("/v1/agents", { params: { query: { status, limit: 1000 } } })),
    staleTime: CALM_MS,
    refetchInterval: CALM_MS,
  });
}

export const modelsQuery = queryOptions({
  queryKey: ["models"],
  queryFn: () => told(server.GET("/v1/models")),
  staleTime: CALM_MS,
});

export const reposQuery = queryOptions({
  queryKey: ["repos"],
  queryFn: () => told(server.GET("/api/repos")),
  staleTime: CALM_MS,
});

export const defaultsQuery = queryOptions({
  queryKey: ["defaults"],
  queryFn: () => told(server.GET("/v1/defaults")),
  staleTime: CALM_MS,
});
