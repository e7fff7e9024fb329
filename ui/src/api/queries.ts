/** The queries that several views share, each under one cache key. */
import { QueryClient, queryOptions } from "@tanstack/react-query";

import { STATUS_FILTERS, type SessionStatus } from "../sessions/session_status";
import { ApiError, server, unwrap } from "./client";

const FAST_REFETCH_MS = 2_000;
const SLOW_REFETCH_MS = 30_000;
export const PAGE_SIZE = 60;

export const queryClient = new QueryClient({
  defaultOptions: {
    queries: {
      staleTime: 1_000,
      // An error response is final; retry only if there was no response.
      retry: (count, error) => error instanceof ApiError && error.status === 0 && count < 2,
    },
  },
});

export interface SessionFilter {
  readonly status: SessionStatus | "";
  readonly agent: string;
  readonly title: string;
}

export function sessionsQuery(filter: SessionFilter, limit: number) {
  const query = {
    order: "updated_at" as const,
    limit,
    ...(filter.status ? STATUS_FILTERS[filter.status] : {}),
    ...(filter.title ? { q: filter.title } : {}),
  };
  return queryOptions({
    queryKey: ["sessions", filter, limit],
    queryFn: () =>
      filter.agent
        ? unwrap(server.GET("/v1/agents/{agent_id}/sessions", { params: { path: { agent_id: filter.agent }, query } }))
        : unwrap(server.GET("/v1/sessions", { params: { query } })),
    refetchInterval: FAST_REFETCH_MS,
    placeholderData: (previous) => previous,
  });
}

export function sessionQuery(id: string) {
  return queryOptions({
    queryKey: ["session", id],
    queryFn: () => unwrap(server.GET("/v1/sessions/{session_id}", { params: { path: { session_id: id } } })),
  });
}

/** A session with `count` children, and all sessions below it. */
export function treeQuery(id: string, count: number) {
  return queryOptions({
    // By their number, so that a new child is listed.
    queryKey: ["session", id, "tree", count],
    queryFn: () => unwrap(server.GET("/v1/sessions/{session_id}/tree", { params: { path: { session_id: id } } })),
    enabled: count > 0,
    // While one runs, it may open more.
    refetchInterval: ({ state }) => (state.data?.data.some((each) => each.status === "running") ? FAST_REFETCH_MS : false),
  });
}

export function approvalsQuery(id: string) {
  return queryOptions({
    queryKey: ["session", id, "approvals"],
    queryFn: () =>
      unwrap(
        server.GET("/v1/sessions/{session_id}/approvals", {
          params: { path: { session_id: id }, query: { state: "waiting" } },
        }),
      ),
  });
}

/** Pending approvals of all sessions: the list shows which sessions wait for one. */
export const pendingApprovalsQuery = queryOptions({
  queryKey: ["approvals", "waiting"],
  queryFn: () => unwrap(server.GET("/v1/approvals", { params: { query: { state: "waiting" } } })),
  refetchInterval: FAST_REFETCH_MS,
});

function callsQuery(id: string, state: "unknown" | "requested") {
  return queryOptions({
    queryKey: ["session", id, state],
    queryFn: () =>
      unwrap(server.GET("/v1/sessions/{session_id}/calls", { params: { path: { session_id: id }, query: { state } } })),
  });
}

/** Calls that were cut off: the user settles them. */
export const unknownCallsQuery = (id: string) => callsQuery(id, "unknown");

/** Calls that a client has to run. */
export const requestedCallsQuery = (id: string) => callsQuery(id, "requested");

export function agentsQuery(status: "active" | "archived" | "all" = "active") {
  return queryOptions({
    queryKey: ["agents", status],
    queryFn: () => unwrap(server.GET("/v1/agents", { params: { query: { status, limit: 1000 } } })),
    staleTime: SLOW_REFETCH_MS,
    refetchInterval: SLOW_REFETCH_MS,
  });
}

export const modelsQuery = queryOptions({
  queryKey: ["models"],
  queryFn: () => unwrap(server.GET("/v1/models")),
  staleTime: SLOW_REFETCH_MS,
});

export const reposQuery = queryOptions({
  queryKey: ["repos"],
  queryFn: () => unwrap(server.GET("/api/repos")),
  staleTime: SLOW_REFETCH_MS,
});

export const defaultsQuery = queryOptions({
  queryKey: ["defaults"],
  queryFn: () => unwrap(server.GET("/v1/defaults")),
  staleTime: SLOW_REFETCH_MS,
});
