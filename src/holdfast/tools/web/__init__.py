"""The `http_request` tool and its SSRF policy: resolve once, check every address, connect to it."""
