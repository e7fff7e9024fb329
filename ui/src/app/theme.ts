/** The theme: that of the system, or the one the user chose. */
const KEY = "holdfast.theme";
const ORDER = ["system", "light", "dark"] as const;

export type Theme = (typeof ORDER)[number];

export function currentTheme(): Theme {
  const stored = localStorage.getItem(KEY);
  return ORDER.find((each) => each === stored) ?? "system";
}

export function applyTheme(theme: Theme): void {
  if (theme === "system") localStorage.removeItem(KEY);
  else localStorage.setItem(KEY, theme);
  document.documentElement.dataset["theme"] = theme;
}

export function nextTheme(theme: Theme): Theme {
  return ORDER[(ORDER.indexOf(theme) + 1) % ORDER.length] ?? "system";
}
