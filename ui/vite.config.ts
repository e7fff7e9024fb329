import react from "@vitejs/plugin-react";
import type { Plugin } from "vite";
import { defineConfig } from "vitest/config";

// For development with `npx vite`: API requests are proxied to a running server.
const SERVER = "http://127.0.0.1:8765";

/** Preload the page chunk, so that its download does not wait for the entry script to run. */
function preloadPage(): Plugin {
  return {
    name: "preload-page",
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
  plugins: [react(), preloadPage()],
  build: {
    outDir: "../src/holdfast/http/page",
    emptyOutDir: true,
    target: "es2022",
    // The polyfill is an inline script, which the Content Security Policy forbids (XSS).
    modulePreload: { polyfill: false },
    // The policy forbids data: URLs, too, so every asset is a file.
    assetsInlineLimit: 0,
    cssCodeSplit: false,
    sourcemap: false,
  },
  server: { proxy: { "/v1": SERVER, "/api": SERVER, "/sign-in": SERVER } },
  // The tested functions have no shared state, so one thread without isolation is enough.
  test: { include: ["src/**/*.test.{ts,tsx}"], environment: "node", pool: "threads", isolate: false },
});
