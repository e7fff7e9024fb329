import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// For `npx vite` while the page is written: everything else comes from a running server.
const SERVER = "http://127.0.0.1:8765";

/** Has the page itself fetched at once, and not when what comes before it has run. */
function preloadedPage(): Plugin {
  return {
    name: "preloaded-page",
    transformIndexHtml: {
      order: "post",
      handler(html, { bundle }) {
        const page = Object.values(bundle ?? {}).find((each) => each.type === "chunk" && each.name === "page");
        const files = page?.type === "chunk" ? [page.fileName, ...page.imports.filter((file) => !html.includes(file))] : [];
        const attributes = (file: string) => ({ rel: "modulepreload", crossorigin: true, href: `/${file}` });
        return files.map((file) => ({ tag: "link", attrs: attributes(file), injectTo: "head" as const }));
      },
    },
  };
}

export default defineConfig({
  plugins: [react(), preloadedPage()],
  build: {
    outDir: "../src/holdfast/http/page",
    emptyOutDir: true,
    target: "es2022",
    // A polyfill would be a script in the page itself, which the page's policy forbids.
    modulePreload: { polyfill: false },
    // Nor may pictures or styles come as data: every byte has an address of its own.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    sourcemap: false,
  },
  server: { proxy: { "/v1": SERVER, "/api": SERVER, "/sign-in": SERVER } },
  // The tests are of functions that keep nothing, so one process is enough for all of them.
  test: { include: ["src/**/*.test.{ts,tsx}"], environment: "node", pool: "threads", isolate: false },
});
