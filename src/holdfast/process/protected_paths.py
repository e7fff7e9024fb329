"""Protected paths: never readable or writable by a tool, or not writable without approval.

The second group holds files that other programs run later. It is a table of file classes, not a
list of known attacks. Names are case-folded and Unicode-normalized before they are compared.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from fnmatch import translate
from functools import cache
from typing import Final, Literal, NamedTuple

# Folded names of an absolute path, starting at the file system root.
Names = tuple[str, ...]
# Not readable; not writable; not writable unless the user's settings name it.
Cover = Literal["hidden", "locked", "sensitive"]


def _words(*lines: str) -> tuple[str, ...]:
    """Return the words of a table; `name(.*)` stands for the name with or without an extension."""
    found = []
    for word in " ".join(lines).split():
        name = word.removesuffix("(.*)")
        found += [name] if name == word else [name, f"{name}.*"]
    return tuple(found)


def _paths(*lines: str) -> tuple[tuple[str, ...], ...]:
    """Return the paths of a table by their names."""
    return tuple(tuple(path.split("/")) for path in _words(*lines))


_HIDDEN_FOLDERS: Final = frozenset({".ssh", ".aws", ".gnupg", ".kube", ".azure", "gcloud"})
_HIDDEN_FILES: Final = frozenset(
    _words(
        ".env .envrc .netrc _netrc .npmrc .pypirc .pgpass",
        ".git-credentials .gitconfig .dockercfg",
    )
)
# Credential paths, relative to a home directory.
CREDENTIALS: Final = (
    *sorted(_HIDDEN_FOLDERS - {"gcloud"}),
    *sorted(_HIDDEN_FILES),
    *(".config/gcloud", ".docker/config.json", ".config/git/credentials"),
)
_SAMPLES: Final = frozenset({".env.example", ".env.sample", ".env.template"})
_GIT_SECRETS: Final = frozenset({"config", "config.worktree", "credentials"})
# A name without an extension may be a private key; a source file such as id_map.py is not one.
_KEY_FILE: Final = re.compile(r"id_(?:rsa|dsa|ecdsa|ed25519|xmss).*(?<!\.pub)|id_[^.]+")
_KEY_HEADER: Final = re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
KEY_HEAD: Final = 4096
# Placeholder for a name that matches no rule.
_ANY_NAME: Final = "\x00"
# `git~1` is the 8.3 short name of `.git` on FAT and NTFS.
_OURS_AND_GIT: Final = frozenset({".git", "git~1", ".holdfast"})
_START_FILES: Final = frozenset(
    _words(
        ".profile .login .logout .inputrc .pam_environment",
        ".bashrc .bash_profile .bash_login .bash_logout .bash_aliases",
        ".zshrc .zshenv .zprofile .zlogin .zlogout .kshrc .mkshrc .cshrc .tcshrc",
        ".xinitrc .xprofile .xsession .xsessionrc .xserverrc authorized_keys authorized_keys2",
    )
)
_POWERSHELL_PROFILE: Final = re.compile(r"(?:.*_)?profile\.ps1")
_START_FOLDERS: Final = (
    *_paths(
        ".config/fish .config/nushell .config/powershell .config/git .config/systemd",
        ".config/environment.d .config/autostart .config/autostart-scripts",
        ".config/plasma-workspace .local/share/systemd .local/share/dbus-1 library/launchagents",
        "library/launchdaemons documents/powershell windowspowershell",
    ),
    ("start menu", "programs", "startup"),
)
# Matched from the root only, because a project may contain the file tree of another machine.
_SYSTEM_START: Final = _paths(
    "etc/profile etc/profile.d etc/environment etc/bash.bashrc etc/bashrc etc/zsh etc/zshrc",
    "etc/zshenv etc/zprofile etc/gitconfig etc/systemd etc/cron.d etc/crontab etc/xdg/autostart",
    "etc/ssh etc/sudoers etc/sudoers.d etc/ld.so.preload var/spool/cron",
)
_SYSTEM_TOPS: Final = frozenset(names[:1] for names in _SYSTEM_START)
_START_TOPS: Final = frozenset(names[0] for names in _START_FOLDERS)


def fold_name(name: str) -> str:
    """Fold a name: drop format characters, case, NTFS streams and trailing dots and spaces."""
    if not name.isascii():
        name = "".join(each for each in name if unicodedata.category(each) != "Cf")
        name = unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
    return name.lower().partition(":")[0].rstrip(". ")


def fold_path(names: Iterable[str]) -> Names:
    """Fold the names of a path and drop those that become empty."""
    return tuple(name for name in map(fold_name, names) if name)


class ProtectedPaths:
    """The protection rules, including the folders that belong to this installation."""

    def __init__(self, protected: Iterable[Sequence[str]]) -> None:
        folders = (fold_path(names) for names in protected)
        self._protected = tuple(names for names in folders if names)

    def hides(self, path: Names, *, is_folder: bool) -> bool:
        """Return whether reading this path is forbidden."""
        if not _HIDDEN_FOLDERS.isdisjoint(path):
            return True
        if any(path[: len(names)] == names for names in self._protected):
            return True
        # Device files are hidden; `/dev/shm` is shared memory and works like any other folder.
        if path[:1] == ("dev",) and path[1:2] not in ((), ("shm",)):
            return True
        return not is_folder and bool(path) and _is_hidden_file(path)

    def locks(self, path: Names) -> bool:
        """Return whether writing this file is forbidden."""
        if self.hides(path, is_folder=False) or not _OURS_AND_GIT.isdisjoint(path):
            return True
        if path[:1] in _SYSTEM_TOPS and any(path[: len(n)] == n for n in _SYSTEM_START):
            return True
        if not _START_TOPS.isdisjoint(path) and any(_passes(path, n) for n in _START_FOLDERS):
            return True
        name = _last(path)
        return name in _START_FILES or _POWERSHELL_PROFILE.fullmatch(name) is not None

    def cover(self, path: Names, *, is_folder: bool) -> Cover | None:
        """Return how the path is covered for a command; `None` means not covered.

        A folder is covered when the rules cover every file in it, whatever its name.
        """
        if self.hides(path, is_folder=is_folder):
            return "hidden"
        whole = (*path, _ANY_NAME) if is_folder else path
        if self.locks(whole):
            return "locked"
        return "sensitive" if is_sensitive(whole) else None


def is_sensitive(path: Names) -> bool:
    """Return whether other programs run this file later; `_RULES` has the table."""
    return run_later(path) is not None


def is_private_key(head: bytes) -> bool:
    """Return whether the first bytes of a file contain a private key header."""
    return _KEY_HEADER.search(head) is not None


def _is_hidden_file(path: Names) -> bool:
    *folders, name = path
    if name in _HIDDEN_FILES or _KEY_FILE.fullmatch(name):
        return True
    if name.startswith(".env."):
        return name not in _SAMPLES
    if name == "config.json":
        return ".docker" in folders
    if name in _GIT_SECRETS:
        return any(each.endswith(".git") for each in folders) or folders[-2:] == [".config", "git"]
    return False


def _last(path: Names) -> str:
    return path[-1] if path else ""


def _passes(path: Names, folders: Names) -> bool:
    """Return whether a path contains these folders in direct sequence."""
    if folders[0] not in path:
        return False
    size = len(folders)
    return any(path[at : at + size] == folders for at in range(len(path) - size + 1))


class RunLater(StrEnum):
    """Why a file is sensitive: what runs it, or what it configures to run."""

    EXECUTABLE = "executable"
    INSTALLED = "installed code"
    HOOK = "hook"
    CI = "CI and deployment"
    EDITOR = "editor setting"
    AGENT = "agent setting"
    ENVIRONMENT = "environment and startup"
    BUILD = "build and test entry point"


class _Rule(NamedTuple):
    """Paths of one class: below one of the folders, or with a last name that matches a pattern."""

    folders: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


_RULES: Final[Mapping[RunLater, _Rule]] = {
    # Files with an executable bit also belong here; `changes.py` checks the mode of the file.
    RunLater.EXECUTABLE: _Rule(
        folders=_words(
            "node_modules/.bin vendor/bin venv/bin .venv/bin env/bin .local/bin",
            ".local/share/applications",
        ),
        names=_words(
            "*.sh *.bash *.zsh *.ksh *.csh *.fish *.nu *.command *.bat *.cmd *.ps1 *.psm1 *.psd1",
            "*.vbs *.wsf *.exe *.com *.scr *.msi *.desktop *.appimage *.inf *.reg *.run *.xsh",
            "*.hta *.jse *.vbe *.wsh *.pif *.lnk *.url *.ahk *.elv *.scpt *.applescript *.workflow",
            "*.mobileconfig *.pyw *.pyz",
        ),
    ),
    # Programs import these files, and they do not appear in a diff that a person reviews.
    RunLater.INSTALLED: _Rule(
        folders=_words(
            "node_modules bower_components .venv venv virtualenv site-packages dist-packages .tox",
            ".nox .eggs .bundle vendor/bundle .yarn .pnpm __pycache__ .gradle .mvn",
        ),
        names=_words("*.pth *.pyc *.egg-link sitecustomize.py usercustomize.py"),
    ),
    RunLater.HOOK: _Rule(
        folders=_words(
            ".husky .githooks githooks .git-hooks git-hooks .hooks .hg .jj .svn .bzr _darcs .sl",
            ".lefthook .overcommit",
        ),
        names=_words(
            "lefthook.* .lefthook.* lefthook-local.* .lefthook-local.* .pre-commit-config.y*ml",
            ".pre-commit-hooks.y*ml .overcommit.yml .lintstagedrc* lint-staged.config.*",
            "captainhook.json .grit.yml .simple-git-hooks.* simple-git-hooks.* .huskyrc*",
            "husky.config.* .hgrc .gitattributes .gitmodules prek.toml .commitlintrc*",
        ),
    ),
    RunLater.CI: _Rule(
        folders=_words(
            ".github .gitea .forgejo .gitlab .woodpecker .drone .buildkite .circleci",
            ".azure-pipelines .azuredevops .jenkins .teamcity .ci .tekton .semaphore .builds",
            ".harness .codefresh .zuul.d zuul.d .aws-sam .devcontainer .codesandbox .do .platform",
            ".ebextensions .upsun .ddev .docksal .dependabot .argo .moon .nextflow .dagger",
        ),
        names=_words(
            ".gitlab-ci* *.gitlab-ci.y*ml .woodpecker* woodpecker*.y*ml .drone* *.jenkinsfile",
            "azure-pipelines* .azure-pipelines* bitbucket-pipelines* .travis.y*ml appveyor.y*ml",
            ".appveyor.y*ml .cirrus.* .build.yml cloudbuild*.y*ml cloudbuild.json buildspec*.y*ml",
            "appspec.y*ml wercker.y*ml codefresh.y*ml .scrutinizer.yml .zuul.yaml zuul.yaml",
            "screwdriver.yaml .onedev-buildspec.yml bitrise.yml codemagic.y*ml netlify.toml",
            "vercel.json now.json fly.toml render.y*ml heroku.yml app.json renovate.json*",
            ".renovaterc* dependabot.y*ml dagger.json earthfile skaffold.y*ml tiltfile .gitpod*",
            ".replit replit.nix .devcontainer.json .goreleaser.* .releaserc* .mergify.y*ml",
            "release.config.* serverless.y*ml buildkite.y*ml .buildkite.y*ml circle.yml",
            ".semaphore.y*ml .hound.yml .lgtm.yml sonar-project.* dockerfile(.*) containerfile(.*)",
            "jenkinsfile(.*) procfile(.*) *.dockerfile *.containerfile docker-compose*.y*ml",
            "compose.y*ml compose.*.y*ml docker-bake.* devfile.y*ml *.service *.timer *.socket",
            "crontab *.cron supervisord.conf ansible.cfg",
            # an action of a repository, and hooks of tools that deploy
            "action.y*ml pipeline.y*ml readthedocs.y*ml amplify.y*ml app.yaml pulumi*.y*ml",
            "cdk.json samconfig.toml terragrunt.hcl helmfile*.y*ml wrangler.* firebase.json",
            "railway.* nixpacks.toml scalingo.json garden.y*ml *.garden.y*ml devspace.y*ml",
            "okteto.y*ml werf*.y*ml process-compose*.y*ml mprocs.y*ml prefect.y*ml mlproject",
            "dvc.y*ml snapcraft.y*ml",
        ),
    ),
    RunLater.EDITOR: _Rule(
        folders=_words(
            ".vscode .vscode-server .idea .fleet .zed .vs .settings .run .vim .nvim .emacs.d",
            ".helix .nova .theia .atom .sublime .eclipse .jupyter .ipython .lapce .doom.d .bsp",
            ".spacemacs.d .textadept",
        ),
        names=_words(
            "*.code-workspace *.sublime-project *.sublime-workspace *.sublime-build .project",
            ".classpath *.iml *.ipr *.iws *.run.xml *.launch .vimrc _vimrc .gvimrc .exrc .nvimrc",
            ".nvim.lua .lvimrc .dir-locals*.el .emacs .projectile .kakrc .ycm_extra_conf.py",
            ".clangd .ccls .luarc.json* .nova.json *.code-profile .lldbinit .gdbinit",
            ".gdbinit.local tasks.vs.json launch.vs.json .netbeans* .spacemacs .kateproject",
            "launchsettings.json omnisharp.json",
            # a language server runs the compilers that these name
            "compile_commands.json compile_flags.txt",
        ),
    ),
    # Also files that other agents read as instructions.
    RunLater.AGENT: _Rule(
        folders=_words(
            ".claude .claude-plugin .cursor .codex .gemini .agents .agent .windsurf .continue",
            ".cline .clinerules .roo .kilocode .aider .opencode .amazonq .kiro .goose .junie",
            ".augment .qwen .crush .trae .factory .copilot .amp .codeium .tabnine .openhands .mcp",
            ".zencoder .warp .rovodev .void .pearai",
        ),
        names=_words(
            ".mcp.json mcp.json mcp.y*ml mcp.toml .mcp.* mcp_settings.json mcp-config.json",
            "claude_desktop_config.json *.mcpb *.dxt smithery.yaml agents.md agents.*.md agent.md",
            "claude.md claude.*.md .claude.json gemini.md qwen.md crush.md copilot-instructions.md",
            "warp.md skill.md .cursorrules .cursorignore .windsurfrules .clinerules .roomodes",
            ".roorules* .goosehints .aider* opencode.json* crush.json .crush.json .continuerc*",
            ".rules *.agent.y*ml *.agent.md *.mdc",
        ),
    ),
    RunLater.ENVIRONMENT: _Rule(
        folders=_words(
            # settings of all programs that follow the XDG convention
            ".config",
            ".mise .rtx .asdf .shadowenv.d .direnv .devenv .hammerspoon .xmonad .julia .lein .ghc",
            ".bash_it .oh-my-zsh .trunk .qlty",
        ),
        names=_words(
            # Settings by their form: `.psqlrc`, `.lighthouserc.js`, `.bashrc.local`, `.air.toml`.
            ".*rc .*rc.* .*_profile.* .*.local .*.conf .*.cfg .*.ini .*.toml .*.y*ml .*.json",
            ".*.jsonc .*.json5 .*.edn .*.xml",
            # What a mail server runs, and what chezmoi copies into the home folder.
            ".forward dot_* .rbenv-vars",
            # Settings that are code: `.size-limit.js`, `.wezterm.lua`, `.toys.rb`.
            ".*.js .*.cjs .*.mjs .*.ts .*.py .*.rb .*.php .*.lua .*.el .*.jl .*.pl .*.hs",
            ".tool-versions *.mise.toml mise.toml .mise.* mise.*.toml .rtx.toml .nvmrc",
            ".node-version .python-version .ruby-version .java-version .sdkmanrc .jvmrc",
            ".terraform-version .bazelversion .go-version .ruby-gemset .rvmrc .autoenv*",
            ".shadowenv* rust-toolchain* *.nix flake.lock devenv.y*ml devbox.json pixi.toml",
            "pixi.lock .tmux.conf .screenrc .wgetrc .curlrc .psqlrc .sqliterc .irbrc .pryrc",
            ".pdbrc* .pythonrc* .pythonstartup .rprofile .renviron .iex.exs .ghci .ocamlinit",
            ".mailcap .lessfilter .lesskey .htaccess .user.ini web.config .terraformrc pip.conf",
            "pip.ini uv.toml",
        ),
    ),
    RunLater.BUILD: _Rule(
        folders=_words(
            ".cargo gradle/wrapper .bazel .storybook buildsrc .toys .nuke tuist debian renv",
            "packrat _plugins cypress/support cypress/plugins features/environment.py",
        ),
        names=_words(
            "makefile(.*) gnumakefile(.*) bsdmakefile(.*) sconstruct(.*) sconscript(.*)",
            "rakefile(.*) gemfile(.*) podfile(.*) pipfile(.*) gulpfile(.*) gruntfile(.*)",
            "jakefile(.*)",
            # make and similar tools
            "kbuild *.mk *.mak justfile .justfile *.just taskfile*.y*ml magefile*.go wscript waf",
            "tupfile dodo.py doit.cfg snakefile acornfile appfile cakefile cartfile caskfile",
            "doxyfile matchfile mintfile runfile steepfile maskfile.md *.do moon.y*ml .prototools",
            ".plzconfig build.plz pants buildout.cfg tasks.toml appraisals sake*.y*ml",
            "run_tasks.y*ml book.toml kconfig*",
            # C, C++ and other configured builds
            "cmakelists.txt *.cmake cmakepresets.json cmakeuserpresets.json configure configure.*",
            "*.m4 autogen bootstrap config.guess config.sub install-sh makevars* meson.build",
            "meson_options.txt meson.options *.ninja conanfile.* vcpkg.json xmake.lua",
            "premake*.lua *.gyp *.gypi build workspace build.bazel workspace.bazel module.bazel",
            "*.bzl .bazelrc buck .buckconfig pants.toml *.vcxproj* *.csproj* *.fsproj* *.vbproj*",
            "*.sln *.slnx *.props *.targets *.proj global.json nuget.config *.pbxproj *.xcscheme",
            "package.swift package.resolved",
            # JavaScript and TypeScript
            "package.json package.json5 package.y*ml package-lock.json jsr.json",
            "npm-shrinkwrap.json yarn.lock pnpm-lock.y*ml pnpm-workspace.y*ml bun.lock*",
            "bunfig.toml .yarnrc* .pnp.* .pnpmfile.* lerna.json nx.json turbo.json* angular.json",
            "deno.json* deno.lock bower.json *.config.js *.config.cjs *.config.mjs *.config.ts",
            "*.config.cts *.config.mts *.conf.js *.conf.ts *.config.json *.config.*.js",
            "*.config.*.ts webpack.* knexfile.* plopfile.* lighthouserc* nodemon.json cypress.json",
            "codegen.y*ml rush.json command-line.json ember-cli-build.js serverless.* .eslintrc*",
            ".babelrc* .mocharc* .prettierrc* .stylelintrc* .swcrc .nycrc* .c8rc* .taprc .noderc",
            "vitest.* jest.*.js jest.*.ts project.json bsconfig.json rescript.json",
            # Python
            "setup.py setup.cfg pyproject.toml conftest.py pytest.ini .pytest.ini tox.ini .tox.ini",
            "noxfile.py fabfile.py conf.py pavement.py requirements*.txt requirements*.in",
            "constraints*.txt poetry.lock poetry.toml uv.lock pdm.lock pylock*.toml hatch.toml",
            "hatch_build.py environment.y*ml conda*.y*ml pylintrc .pylintrc* mypy.ini .mypy.ini",
            ".flake8 .coveragerc gunicorn.conf.py jupyter_*_config.py pythonstartup.py *.smk",
            "nextflow.config invoke.y*ml locustfile.py mkdocs.y*ml scrapy.cfg behave.ini",
            "alembic.ini mutmut_config.py dbt_project.y*ml",
            # Rust, Go, Zig
            "build.rs cargo.toml cargo.lock go.mod go.sum go.work* build.zig* *.nimble *.nims",
            "nim.cfg dub.json dub.sdl shard.yml bacon.toml trunk.toml cross.toml dioxus.toml",
            "leptos.toml",
            # Java and other JVM languages
            "pom.xml *.gradle *.gradle.kts gradle.properties gradlew mvnw build.xml ivy.xml *.sbt",
            "build.sc build.mill project.clj deps.edn shadow-cljs.edn build.boot lein*.clj",
            "libs.versions.toml bb.edn tests.edn .sbtopts .jvmopts build.properties bleep.y*ml",
            "build.cake *.fsx *.csx paket.*",
            # Ruby, PHP, Perl and others
            "*.rake gems.rb gems.locked *.gemspec guardfile capfile vagrantfile fastfile",
            "dangerfile brewfile thorfile berksfile .rspec config.ru composer.json composer.lock",
            "phpunit.xml* .php-cs-fixer* .php_cs* phpstan.neon* psalm.xml* phpcs.xml* rector.php",
            "ecs.php castor.php robofile.php deploy.php artisan grumphp.y*ml infection.json*",
            "envoy.blade.php phpbench.json* .simplecov .gitlint .tflint.hcl *.xcconfig",
            "project.swift makefile.pl build.pl cpanfile* mix.exs mix.lock rebar.config*",
            ".formatter.exs *.cabal cabal.project* stack.y*ml setup.hs setup.lhs dune",
            "dune-project *.opam *.rockspec pubspec.* build.yaml project.toml manifest.toml",
            "spago.* elm.json hie.yaml puppetfile *.podspec dist.ini minil.toml packages.config",
            "_targets.r *.nf *.hxml foundry.toml truffle.js truffle-config.js anchor.toml",
            "scarb.toml",
            # what test runners load before the tests, as they do `conftest.py`
            "spec_helper.rb rails_helper.rb test_helper.* setuptests.* mocha.opts lit.cfg*",
            "lit.*.cfg* testthat.r gatsby-*.js gatsby-*.ts",
            # recipes of packages, and settings that are programs
            "pkgbuild apkbuild *.ebuild latexmkrc",
        ),
    ),
}
_FOLDERS: Final = tuple(
    (tuple(folder.split("/")), kind) for kind, rule in _RULES.items() for folder in rule.folders
)
_FIRST_NAMES: Final = frozenset(folders[0] for folders, _ in _FOLDERS)
# What test runners leave of a run, with a name like that of a setting.
_RESULTS: Final = frozenset({".last-run.json"})
# Folders in which agents store worktrees; a worktree contains a project, not agent settings.
_TREES: Final = frozenset({"worktrees", "worktree", "workspaces"})


def run_later(path: Names) -> RunLater | None:
    """Return the class of a path given by its folded names; `None` for ordinary files."""
    names = _in_its_tree(path)
    # Most paths match no folder rule; comparing all rules would take most of a survey's time.
    if not _FIRST_NAMES.isdisjoint(names):
        for folders, kind in _FOLDERS:
            if _passes(names, folders):
                return kind
    last = names[-1] if names else ""
    if last in _RESULTS:
        return None
    return next((kind for pattern, kind in _name_patterns() if pattern.match(last)), None)


@cache
def _name_patterns() -> "tuple[tuple[re.Pattern[str], RunLater], ...]":
    # Compiled at the first use, because that takes longer than all imports of the package.
    return tuple(
        (re.compile("|".join(translate(pattern) for pattern in rule.names)), kind)
        for kind, rule in _RULES.items()
        if rule.names
    )


def _in_its_tree(path: Names) -> Names:
    """Return the names below an agent's worktree, as in `.claude/worktrees/one/src/a.py`."""
    agents = _RULES[RunLater.AGENT].folders
    for at in range(len(path) - 3, -1, -1):
        if path[at + 1] in _TREES and path[at] in agents:
            return path[at + 3 :]
    return path
