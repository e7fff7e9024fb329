"""Paths of files that other programs run later, by class, and of files that are only source."""

from holdfast.process.protected_paths import RunLater

KINDS: dict[RunLater, tuple[str, ...]] = {
    RunLater.EXECUTABLE: (
        *("deploy.sh", "scripts/release.bash", "run.bat", "run.cmd", "Setup.PS1", "x.desktop"),
        *("node_modules/.bin/tsc", ".venv/bin/python", "venv/bin/activate", "vendor/bin/phpunit"),
        *("env/bin/pip", "start.command", "autorun.inf"),
    ),
    RunLater.INSTALLED: (
        *("node_modules/left-pad/index.js", ".venv/lib/python3.12/site-packages/x.py"),
        *("lib/site-packages/x/__init__.py", "sitecustomize.py", "usercustomize.py", "x.pth"),
        *(".tox/py/x.py", ".yarn/releases/yarn.cjs", "pkg/__pycache__/x.cpython-312.pyc"),
        *(".mvn/jvm.config", ".eggs/x.py"),
    ),
    RunLater.HOOK: (
        *(".husky/pre-commit", ".githooks/pre-push", "lefthook.yml", "lefthook.yaml"),
        *("lefthook-local.yml", ".lefthook.toml", ".pre-commit-config.yaml", ".hg/hgrc"),
        *(".pre-commit-config.yml", ".overcommit.yml", ".lintstagedrc.json", ".svn/hooks/x"),
        *("lint-staged.config.js", ".jj/repo/config.toml", ".gitattributes", ".gitmodules"),
        *(".simple-git-hooks.json", "captainhook.json", ".hgrc"),
    ),
    RunLater.CI: (
        *(".github/workflows/ci.yml", ".github/actions/x/action.yml", ".github/dependabot.yml"),
        *(".gitea/workflows/ci.yaml", ".forgejo/workflows/ci.yml", ".gitlab-ci.yml"),
        *(".gitlab/ci/x.yml", ".woodpecker.yml", ".woodpecker/build.yaml", ".drone.yml"),
        *(".drone.star", ".buildkite/pipeline.yml", ".circleci/config.yml", ".travis.yml"),
        *("azure-pipelines.yml", "azure-pipelines-nightly.yaml", "Jenkinsfile", ".cirrus.yml"),
        *("Jenkinsfile.release", "bitbucket-pipelines.yml", "appveyor.yml", ".teamcity/x.kts"),
        *(".tekton/x.yaml", ".semaphore/semaphore.yml", ".builds/alpine.yml", "cloudbuild.yaml"),
        *("buildspec.yml", "Dockerfile", "docker/Dockerfile.dev", "api.dockerfile", "Procfile"),
        *("docker-compose.yml", "docker-compose.override.yaml", "compose.yaml", "Containerfile"),
        *(".devcontainer/devcontainer.json", ".devcontainer.json", ".gitpod.yml", "netlify.toml"),
        *("vercel.json", "fly.toml", "Tiltfile", "x.service", ".ci/build", "codemagic.yaml"),
    ),
    RunLater.EDITOR: (
        *(".vscode/tasks.json", ".vscode/settings.json", ".VSCode/launch.json", ".idea/x.xml"),
        *(".zed/tasks.json", ".zed/settings.json", "app.code-workspace", ".fleet/run.json"),
        *(".exrc", ".nvim.lua", ".vimrc", ".vim/plugin/x.vim", ".dir-locals.el", ".emacs.d/i.el"),
        *("x.sublime-project", ".run/x.run.xml", ".helix/languages.toml", ".vs/tasks.vs.json"),
        *(".ycm_extra_conf.py", ".gdbinit", ".ipython/startup/x.py"),
    ),
    RunLater.AGENT: (
        *(".mcp.json", "mcp.json", ".claude/settings.json", ".claude/commands/x.md"),
        *(".cursor/mcp.json", ".cursor/rules/x.mdc", ".codex/config.toml", "CLAUDE.local.md"),
        *(".gemini/settings.json", "AGENTS.md", "deep/AGENTS.md", "CLAUDE.md", "GEMINI.md"),
        *(".cursorrules", ".windsurfrules", ".clinerules", ".roo/mcp.json", ".roomodes"),
        *(".continue/config.yaml", ".aider.conf.yml", "opencode.json", ".opencode/x.ts"),
        *(".amazonq/mcp.json", ".kiro/x.json", ".goosehints", "crew/scout.agent.yaml"),
        *(".github/copilot-instructions.md",),
    ),
    RunLater.ENVIRONMENT: (
        *(".tool-versions", "mise.toml", ".mise.toml", ".mise/config.toml", ".nvmrc", "flake.nix"),
        *("shell.nix", ".python-version", "rust-toolchain.toml", ".tmux.conf", ".Rprofile"),
        *(".htaccess", ".irbrc", "devbox.json", "pip.conf"),
    ),
    RunLater.BUILD: (
        *("Makefile", "makefile", "GNUmakefile", "Makefile.am", "rules.mk", "justfile"),
        *("Taskfile.yml", "package.json", "web/package.json", "package-lock.json", "yarn.lock"),
        *("pnpm-lock.yaml", ".pnpmfile.cjs", "gulpfile.js", "webpack.config.js"),
        *("vite.config.ts", "jest.config.mjs", ".eslintrc.js", "turbo.json", "deno.json"),
        *("setup.py", "setup.cfg", "pyproject.toml", "conftest.py", "tests/conftest.py"),
        *("pytest.ini", "tox.ini", "noxfile.py", "requirements.txt", "requirements-dev.txt"),
        *("Pipfile", "uv.lock", "poetry.lock", ".pylintrc", "mypy.ini", "docs/conf.py"),
        *("build.rs", "Cargo.toml", "Cargo.lock", ".cargo/config.toml", "go.mod", "build.zig"),
        *("CMakeLists.txt", "cmake/x.cmake", "configure", "meson.build", "BUILD.bazel"),
        *("WORKSPACE", "x.bzl", "app.csproj", "Directory.Build.props", "nuget.config"),
        *("build.gradle", "settings.gradle.kts", "gradlew", "pom.xml", "build.xml"),
        *("gradle/wrapper/gradle-wrapper.properties", "build.sbt", "Rakefile", "Gemfile"),
        *("Gemfile.lock", "x.gemspec", "Vagrantfile", "composer.json", "phpunit.xml"),
        *("mix.exs", "x.cabal", "dune", "pubspec.yaml", "Package.swift", "SConstruct"),
    ),
}
ASKING = tuple(path for paths in KINDS.values() for path in paths)

ORDINARY = (
    *("src/main.py", "app.py", "tests/test_app.py", "src/index.ts", "src/App.tsx", "lib/x.js"),
    *("src/main.rs", "src/bin/tool.rs", "bin/main.dart", "cmd/app/main.go", "app/models/user.rb"),
    *("src/Main.java", "src/lib.c", "include/lib.h", "index.html", "style.css", "README.md"),
    *("docs/guide.md", "notes.txt", "data/table.csv", "data.json", "config/settings.py"),
    *("config.yaml", "settings.toml", "tsconfig.json", ".gitignore", ".editorconfig", "LICENSE"),
    *(".env.example", "src/user.service.ts", "src/tuple.py", "src/dockerfile_parser.py"),
    *("src/makefile_reader.py", "autogenerated.py", "package.json.txt", "vscode/x", "github/x"),
    *(
        "scripts/report.py",
        "tasks.py",
        "manage.py",
        "src/build/x.py",
        "query.sql",
        "schema.graphql",
    ),
    *("src/agents.py", "src/claude.py", "templates/page.html", "migrations/0001_first.py"),
    *("Info.plist", "main.tf", "notebook.ipynb", "CHANGELOG.md", "src/hooks/useThing.ts"),
    *("src/setup_page.py", "fixtures/build.txt", "assets/logo.svg", "i18n/de.po", "x.lua"),
    *(".claude/worktrees/one/src/main.py", ".codex/worktrees/two/app.py"),
)
