/** Formats numbers, costs and times for display. */
import type { Cost } from "../api/types";

const MICROCENTS_PER_DOLLAR = 100_000_000;
const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;

// Created once: constructing a formatter is far slower than using it.
const TIME = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const DATE_TIME = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });
const DATE = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short" });

export function formatCost(cost: Cost): string {
  if (cost.microcents === null) return cost.priced ? "–" : "unpriced";
  // An amount that is not priced is an upper bound.
  return cost.priced ? formatDollars(cost.microcents) : `≤ ${formatDollars(cost.microcents)}`;
}

export function formatDollars(microcents: number): string {
  const amount = microcents / MICROCENTS_PER_DOLLAR;
  if (amount === 0) return "$0";
  if (amount < 0.01) return `$${amount.toFixed(4)}`;
  return `$${amount.toFixed(2)}`;
}

/** Return a model's name; a scripted model is shown by its file name, without the folder. */
export function modelLabel(name: string): string {
  return name.startsWith("scripted:") ? `scripted:${name.split("/").at(-1)}` : name;
}

export function formatCount(number: number): string {
  if (number < 1_000) return String(number);
  if (number < 10_000) return `${(number / 1_000).toFixed(1)}k`;
  if (number < 1_000_000) return `${Math.round(number / 1_000)}k`;
  return `${(number / 1_000_000).toFixed(1)}M`;
}

export function formatBytes(number: number): string {
  if (number < 1024) return `${number} B`;
  if (number < 1024 ** 2) return `${(number / 1024).toFixed(1)} KiB`;
  return `${(number / 1024 ** 2).toFixed(1)} MiB`;
}

/** Return how long ago a time was, in short form. */
export function formatAge(time: string, now: number): string {
  const seconds = Math.max(0, Math.round((now - Date.parse(time)) / 1000));
  if (seconds < 45) return "now";
  if (seconds < HOUR) return `${Math.max(1, Math.round(seconds / MINUTE))} min`;
  if (seconds < DAY) return `${Math.round(seconds / HOUR)} h`;
  if (seconds < 7 * DAY) return `${Math.round(seconds / DAY)} d`;
  return DATE.format(new Date(time));
}

export function formatTime(time: string): string {
  return TIME.format(new Date(time));
}

export function formatDateTime(time: string): string {
  return DATE_TIME.format(new Date(time));
}

export function formatDuration(from: string, to: string): string {
  return formatMilliseconds(Date.parse(to) - Date.parse(from));
}

export function formatMilliseconds(milliseconds: number): string {
  const seconds = milliseconds / 1000;
  if (seconds < 0.95) return `${Math.max(0, Math.round(seconds * 1000))} ms`;
  if (seconds < MINUTE) return `${seconds.toFixed(1)} s`;
  if (seconds < HOUR) return `${Math.floor(seconds / MINUTE)} min ${Math.round(seconds % MINUTE)} s`;
  return `${(seconds / HOUR).toFixed(1)} h`;
}
