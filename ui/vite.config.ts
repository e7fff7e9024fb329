import react from "@vitejs/plugin-react";
import { defineConfig } from "vitest/config";

// For `npx vite` while the page is written: everything else comes from a running server.
const SERVER = "http://127.0.0.1:8765";

export default defineConfig({
  plugins: [react()],
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
  test: { include: ["src/**/*.test.{ts,tsx}"], environment: "node" },
});
