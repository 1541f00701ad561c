"""A server in another checkout: it runs that checkout's code on the same data, and is the same workload."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_gpuserve.builds.interpreter import find_python, import_roots, interpreter_of
from pytest_gpuserve.builds.relocation import Relocation
from pytest_gpuserve.builds.worktree import worktree_of
from pytest_gpuserve.errors import NotInRevision, ServerFailed, UsageProblem
from pytest_gpuserve.servers.app import App
from pytest_gpuserve.servers.base import Site
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.mosec import Mosec
from tests.support.plain_git import commit, git, write

SITE = Site(Path("/tmp/x"), {"http": 8000})


HOOK = """
import importlib.machinery, importlib.util, sys

class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "package":
            return importlib.util.spec_from_file_location(name, {file!r}, submodule_search_locations=[])
        if name == "package.fresh":
            return importlib.util.spec_from_file_location(name, {file!r}.replace("__init__", "fresh"))

{insert}
"""
"""What an editable install by an import hook puts into the site-packages, behind or before the path."""


@pytest.fixture(autouse=True)
def no_python_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of this test's own interpreter."""
    for name in [name for name in os.environ if name.startswith("PYTHON")]:
        monkeypatch.delenv(name)


FIRST = {
    "apps/app.py": "",
    "apps/gone.py": "",
    "src/package/__init__.py": "",
    "flat.py": "",
    "models/a/config.json": "{}",
    "my models/b.json": "{}",
    "untracked set/b.json": "{}",
    ".gitignore": "weights/\n.venv/\n",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A project, two commits old, with ignored weights, and a folder and an app that are new in the second commit."""
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "--quiet")
    for files in (FIRST, {"apps/new.py": "", "added/module.py": ""}):
        write(root, files)
        commit(root)
    write(root, dict.fromkeys(("weights/deep/w.bin", "untracked/u.bin", "models old/w.bin"), ""))
    return root


@pytest.fixture
def other(root: Path) -> Iterator[Relocation]:
    """A relocation from the second commit to the first."""
    with worktree_of(root, git(root, "rev-parse", "HEAD~1")) as worktree:
        yield Relocation(root, worktree, revision="origin/main")


def moved(relocation: Relocation, inside: str) -> Path:
    """The place in the worktree."""
    assert relocation.worktree is not None
    return relocation.worktree / inside


def write_both(other: Relocation, files: dict[str, str]) -> None:
    """Give files to both sides."""
    for side in (other.checkout, moved(other, "")):
        write(side, files)
        git(side, "add", "--all")


def test_what_git_tracks_moves_and_the_rest_stays(root: Path, other: Relocation, tmp_path: Path) -> None:
    """Tracked and missing files move, data and outside paths stay, by either name of the checkout."""
    for inside in ("apps/app.py", "apps", "", "models/a", "no/such", "added", "added/module.py"):
        assert other.path(root / inside) == moved(other, inside)
    for inside in ("weights", "weights/deep/w.bin", "untracked", "untracked/u.bin", "apps/../weights"):
        assert other.path(root / inside) == root / inside
    elsewhere = (root / ".." / "no-such", root.with_name("checkout-old") / "apps", moved(other, "apps"))
    for path in (Path("/usr/bin/env"), *elsewhere):
        assert other.path(path) == path
    loop = root / "loop"
    loop.symlink_to(loop)
    assert other.path(loop) == moved(other, "loop")
    link = tmp_path / "link"
    link.symlink_to(root)
    assert other.path(link / "apps") == moved(other, "apps")
    by_link = Relocation(link, other.worktree)
    assert by_link.path(root / "apps") == by_link.path(link / "apps") == moved(other, "apps")
    assert by_link.text(f"{root}/apps:{link}/apps") == f"{moved(other, 'apps')}:{moved(other, 'apps')}"


def test_a_submodule_moves(root: Path, tmp_path: Path) -> None:
    """Code of a submodule is code of a commit; where the worktree has it not, it is not taken from this side."""
    part = tmp_path / "part"
    git(tmp_path, "clone", "--quiet", str(root), str(part))
    git(root, "-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(part), "part")
    commit(root)
    assert (root / "part" / "apps" / "app.py").exists()
    with worktree_of(root, git(root, "rev-parse", "HEAD")) as worktree:
        relocation = Relocation(root, worktree)
        assert relocation.path(root / "part" / "apps") == worktree / "part" / "apps"


def test_paths_in_a_text(root: Path, other: Relocation) -> None:
    """Each path into the checkout that a text contains moves as `path` says; nothing else changes."""
    texts = {
        "{0}": "{1}",
        "--repository={0}/models/": "--repository={1}/models/",
        "{0}/src:/usr/lib:{0}": "{1}/src:/usr/lib:{1}",
        "file://{0}/models/a": "file://{1}/models/a",
        '{{"path": "{0}/models/a", "more": ["{0}/src"]}}': '{{"path": "{1}/models/a", "more": ["{1}/src"]}}',
        "{0}/my models/b.json": "{1}/my models/b.json",
        "{0}/no such thing": "{1}/no such thing",
        "{0}/weights:{0}/src": "{0}/weights:{1}/src",
        "{0}/models old/w.bin": "{0}/models old/w.bin",
        "{0}/.venv/none,{0}/untracked/u.bin": "{1}/.venv/none,{0}/untracked/u.bin",
        "{0}-old/models": "{0}-old/models",
        "mnt{0}/models": "mnt{0}/models",
        "/": "/",
        "/usr//lib/.": "/usr//lib/.",
        "--model={0}/my models/b.json": "--model={1}/my models/b.json",
        "--model={0}/models old/w.bin": "--model={0}/models old/w.bin",
        "--model={0}/untracked set/b.json {0}/untracked": "--model={1}/untracked set/b.json {0}/untracked",
        "{0}/src:{0}/untracked set/b.json, {0}": "{1}/src:{1}/untracked set/b.json, {1}",
        "{0}/" + "long" * 99: "{1}/" + "long" * 99,
    }
    found = {text: other.text(text.format(root, other.worktree)) for text in texts}
    assert found == {text: expected.format(root, other.worktree) for text, expected in texts.items()}


def test_a_relative_argument(root: Path, other: Relocation) -> None:
    """A tracked path stays relative, an untracked one becomes absolute, and a word stays a word."""
    folder = root / "apps"
    (folder / "small").mkdir()
    write(folder, {"data/w.bin": ""})
    arguments = {
        "../models/a": "../models/a",
        "data/w.bin": str(folder / "data" / "w.bin"),
        "../weights": str(folder / "../weights"),
        "--data=data/w.bin": f"--data={folder / 'data' / 'w.bin'}",
        "--models=../models/a": "--models=../models/a",
        "small": "small",
        "no/such": "no/such",
        "long" * 99 + "/more": "long" * 99 + "/more",
        f"{root}/models": str(moved(other, "models")),
    }
    assert {argument: other.argument(argument, folder) for argument in arguments} == arguments
    # A new folder stays, so a path from it to a tracked file would not move with it.
    write(root, {"new suite/test.py": ""})
    assert other.argument("../apps/app.py", root / "new suite") == str(moved(other, "apps/app.py"))
    assert other.argument("../weights", root / "new suite") == "../weights"
    assert Relocation(root, None, "/other/python").argument("data/w.bin", folder) == "data/w.bin"


class Interpreter:
    """A virtual environment without any package.

    Args:
        folder: Where it is made.
    """

    def __init__(self, folder: Path) -> None:
        venv.create(folder, with_pip=False, symlinks=True)
        self.python = str(folder / "bin" / "python")
        self.site = next(folder.glob("lib/python*/site-packages"))

    def pth(self, text: str) -> None:
        """Have a line run at its start: a folder for its path, or an import."""
        (self.site / "project.pth").write_text(f"{text}\n")

    def copy(self, folder: Path, source: str = "src") -> None:
        """Install a copy of the package and of its folder's other code, as ``pip install .`` does."""
        self.editable(folder, editable=False)
        shutil.copytree(folder / source / "package", self.site / "package")
        (self.site / "project-1.dist-info/RECORD").write_text("package/__init__.py,,\n../../../bin/serve.py,,\n")

    def editable(self, folder: Path, *, hooked: str = "", source: str = "src", editable: bool = True) -> None:
        """Note an editable install, with an import hook or without any way to import it."""
        note = self.site / "project-1.dist-info"
        note.mkdir()
        (note / "METADATA").write_text("Metadata-Version: 2.1\nName: project\nVersion: 1\n")
        (note / "direct_url.json").write_text(
            json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True} if editable else {}})
        )
        if hooked:
            file = str(folder / source / "package" / "__init__.py")
            (self.site / "project_hook.py").write_text(HOOK.format(file=file, insert=hooked))
            self.pth("import project_hook")

    def imports(self, module: str, environment: dict[str, str], cwd: Path) -> str:
        """The file from which a server with these variables imports a module."""
        command = [self.python, "-c", f"import {module}; print({module}.__file__)"]
        return subprocess.check_output(command, env={**os.environ, **environment}, cwd=cwd, text=True).strip()


@pytest.fixture
def interpreter(tmp_path: Path) -> Interpreter:
    """An interpreter of a user's."""
    return Interpreter(tmp_path / "venv with space")


def relocate(other: Relocation, interpreter: Interpreter, *words: str, **own: str) -> dict[str, str]:
    """The variables of a server that runs in ``apps``."""
    inherited, cwd = dict(os.environ), other.checkout / "apps"
    return other.environment(own, inherited=inherited, python=interpreter.python, cwd=cwd, words=words)


def test_pythonpath_is_of_the_other_side(root: Path, other: Relocation, interpreter: Interpreter) -> None:
    """Whether absolute or relative to where the server works, its code is imported from the worktree."""
    for path in ("{0}/src", "/usr:{0}/src:{0}", "../src", "{0}/src/", "{0}/weights:../src", ":../src"):
        environment = relocate(other, interpreter, PYTHONPATH=path.format(root))
        found = interpreter.imports("package", environment, moved(other, "apps"))
        assert found == str(moved(other, "src/package/__init__.py")), path
        ours = [entry for entry in environment["PYTHONPATH"].split(":") if entry.startswith(str(root))]
        assert ours == ([f"{root}/weights"] if "weights" in path else [])


@pytest.mark.parametrize("installed", ["by a path file", "by an import hook"])
def test_an_editable_install_is_of_the_other_side(
    root: Path, other: Relocation, interpreter: Interpreter, installed: str
) -> None:
    """An editable install is imported from the worktree, with its code in ``src`` or beside it."""
    if installed == "by a path file":
        interpreter.pth(str(root / "src"))
    else:
        interpreter.editable(root, hooked="sys.meta_path.append(Finder)")
    assert interpreter.imports("package", {}, root) == str(root / "src/package/__init__.py")
    environment = relocate(other, interpreter)
    assert interpreter.imports("package", environment, root) == str(moved(other, "src/package/__init__.py"))
    if installed == "by an import hook":
        assert interpreter.imports("flat", environment, root / "apps") == str(moved(other, "flat.py"))


def test_a_path_file_of_src_does_not_add_what_lies_beside_it(
    root: Path, other: Relocation, interpreter: Interpreter
) -> None:
    """The other side imports from its ``src`` alone, or if it has none, from the folder around it."""
    interpreter.editable(root)
    interpreter.pth(str(root / "src"))
    assert relocate(other, interpreter)["PYTHONPATH"] == str(moved(other, "src"))
    moved(other, "src").rename(moved(other, "package"))
    moved(other, "package/package/__init__.py").rename(moved(other, "package/__init__.py"))
    environment = relocate(other, interpreter)
    assert interpreter.imports("package", environment, root) == str(moved(other, "package/__init__.py"))


def test_an_install_by_a_hook_is_of_the_other_side_with_src_on_the_path(
    root: Path, other: Relocation, interpreter: Interpreter
) -> None:
    """Code beside ``src`` that an import hook finds is the other side's, also if ``PYTHONPATH`` names ``src``."""
    for side in (root, moved(other, "")):
        git(side, "mv", "src/package", "package")
    write_both(other, {"src/native.py": ""})
    interpreter.editable(root, hooked="sys.meta_path.append(Finder)", source="")
    for path in (f"{root}/src", "../src"):
        environment = relocate(other, interpreter, PYTHONPATH=path)
        assert interpreter.imports("package", environment, root / "apps") == str(moved(other, "package/__init__.py"))


@pytest.mark.parametrize("source", ["src", "python"])
def test_an_installed_copy_is_not_of_both_sides(
    root: Path, other: Relocation, interpreter: Interpreter, monkeypatch: pytest.MonkeyPatch, source: str
) -> None:
    """The other side runs its own code instead of a copy by ``pip install .``, whatever the folder of the code is."""
    for side in (root, moved(other, "")):
        (side / "src").rename(side / source)
        git(side, "add", "--all")
    interpreter.copy(root, source)
    environment = relocate(other, interpreter)
    assert interpreter.imports("package", environment, root) == str(moved(other, f"{source}/package/__init__.py"))
    # Another interpreter has a copy of its own, which is compared.
    plain = Interpreter(root.with_name("plain"))
    monkeypatch.setattr(sys, "executable", plain.python)
    assert relocate(Relocation(root, None, interpreter.python), plain) == {}


@pytest.mark.parametrize("tracked", [True, False])
def test_a_package_that_was_moved_is_found_out(
    root: Path, other: Relocation, interpreter: Interpreter, *, tracked: bool
) -> None:
    """An editable install of a moved package is refused, unless ``PYTHONPATH`` names its old folder too."""
    (root / "src").rename(root / "lib")
    if tracked:
        git(root, "add", "--all")
    interpreter.pth(str(root / "lib"))
    with pytest.raises(NotInRevision, match=r"would import package from this checkout") as caught:
        relocate(other, interpreter)
    assert "PYTHONPATH" in str(caught.value)
    environment = relocate(other, interpreter, PYTHONPATH=f"{root}/lib:{root}/src")
    assert interpreter.imports("package", environment, root) == str(moved(other, "src/package/__init__.py"))


@pytest.mark.parametrize(
    ("both", "new", "place"),
    [
        ({"src/package/tests/__init__.py": ""}, "src/tests/__init__.py", "src"),
        ({"flat.py": "from apps.app import main"}, "apps/__init__.py", ""),
    ],
    ids=["with the name of an inner one", "that was a plain folder"],
)
def test_a_new_package_is_not_taken_for_a_moved_one(  # noqa: PLR0917 -- columns of a table
    root: Path, other: Relocation, interpreter: Interpreter, both: dict[str, str], new: str, place: str
) -> None:
    """A new package hinders nothing, whether the other side has an inner package or a plain folder of its name."""
    write_both(other, both)
    write(root, {new: ""})
    interpreter.pth(str(root / place))
    assert relocate(other, interpreter)["PYTHONPATH"] == str(moved(other, place))


def test_a_part_of_a_namespace_that_was_moved_is_found_out(
    root: Path, other: Relocation, interpreter: Interpreter
) -> None:
    """A part of a namespace package that only this side has there is refused, if the command names it."""
    for side in (root, moved(other, "")):
        (side / "src/package/__init__.py").unlink()
    write_both(other, {"src/package/util.py": ""})
    write(root, {"src/package/chat/app.py": ""})
    interpreter.pth(str(root / "src"))
    with pytest.raises(NotInRevision, match=r"would import package.chat.app from this checkout"):
        relocate(other, interpreter, "-m", "package.chat.app")
    for words in (("-m", "package.util"), ("-m", "package.none"), ("chat/app.py", "127.0.0.1:80", "")):
        assert relocate(other, interpreter, *words)["PYTHONPATH"] == str(moved(other, "src"))


@pytest.mark.parametrize("words", [("-m", "fresh"), ("-m", "fresh.app"), ("--app=fresh:app",)])
def test_a_command_that_names_a_new_package_is_refused(
    root: Path, other: Relocation, interpreter: Interpreter, words: tuple[str, ...]
) -> None:
    """A new package is refused only if the command names it, because both sides would then run it."""
    write(root, {"src/fresh/__init__.py": "", "src/fresh/app.py": "", "src/sys/x.py": "", "src/os/x.py": ""})
    interpreter.pth(str(root / "src"))
    with pytest.raises(NotInRevision, match=r"would import fresh\S* from this checkout"):
        relocate(other, interpreter, *words)
    assert relocate(other, interpreter, "-m", "package", "refresh.fresh")["PYTHONPATH"] == str(moved(other, "src"))
    (root / "src/fresh/__init__.py").unlink()
    with pytest.raises(NotInRevision, match=r"would import fresh\S* from this checkout"):
        relocate(other, interpreter, *words)


def test_a_new_module_that_a_hook_finds_is_refused(root: Path, other: Relocation, interpreter: Interpreter) -> None:
    """Setuptools' hook would give this side's new module to the other side's package, if the command names it."""
    write(root, {"src/package/fresh.py": ""})
    interpreter.editable(root, hooked="sys.meta_path.append(Finder)")
    assert relocate(other, interpreter, "-m", "package.none") == relocate(other, interpreter)
    with pytest.raises(NotInRevision, match=r"would import package.fresh from this checkout"):
        relocate(other, interpreter, "package.fresh:app")


def test_a_clone_in_the_checkout_is_shared(root: Path, other: Relocation, interpreter: Interpreter) -> None:
    """A dependency that was cloned into the checkout is not new code of the project."""
    git(root, "clone", "--quiet", ".", "clone")
    interpreter.pth(str(root / "clone/src"))
    environment = relocate(other, interpreter, "-m", "package")
    assert interpreter.imports("package", environment, root) == str(root / "clone/src/package/__init__.py")


@pytest.mark.parametrize(
    ("name", "begin"), [("server", "#!{0}\n"), ("my server", "#!/bin/sh\n'''exec' \"{0}\" \"$0\" \"$@\"\n' '''\n")]
)
def test_a_script_of_another_environment_runs_the_other_sides_code(
    root: Path, other: Relocation, monkeypatch: pytest.MonkeyPatch, name: str, begin: str
) -> None:
    """A console script runs the other side's code, also if the interpreter of the tests lacks the project."""
    interpreter = Interpreter(root.with_name(name))
    interpreter.pth(str(root / "src"))
    script = Path(interpreter.python).with_name("serve")
    script.write_text(begin.format(interpreter.python))
    script.chmod(0o755)
    monkeypatch.setenv("PATH", str(script.parent))
    plain = Interpreter(root.with_name("plain")).python
    for program in (str(script), "serve", interpreter.python):
        there = CommandServer((program, "{port}"), root, "here", plain).relocated(other)
        assert there.environment["PYTHONPATH"] == str(moved(other, "src")), program
    # A package that was renamed is new for the other side.
    write(root, {"src/fresh/__init__.py": ""})
    script.write_text(f"{script.read_text()}import sys\nfrom fresh import main\n")
    for program in (str(script), "serve"):
        with pytest.raises(NotInRevision, match=r"would import fresh from this checkout"):
            CommandServer((program, "{port}"), root, "here", plain).relocated(other)


def test_a_new_working_folder_is_empty_there(root: Path, other: Relocation) -> None:
    """The folder of a new test, which the other side does not have, is made there, empty."""
    write(root, {"suites/new/test_new.py": ""})
    git(root, "add", "--all")
    there = CommandServer(("{python}", "../../apps/app.py", "{port}"), root / "suites/new", "", sys.executable)
    assert list(there.relocated(other).cwd.iterdir()) == []
    assert there.relocated(other).cwd == moved(other, "suites/new")


def test_a_python_that_ignores_pythonpath_is_refused(root: Path, other: Relocation, interpreter: Interpreter) -> None:
    """``python -I`` is refused only with an editable install, because it would import this side's code."""
    command = CommandServer(("{python}", "-I", "-m", "package", "{port}"), root / "apps", "", interpreter.python)
    assert command.relocated(other).environment == {}
    interpreter.pth(str(root / "src"))
    for option in ("-I", "-sE"):
        with pytest.raises(NotInRevision, match=f"python {option} ignores PYTHONPATH"):
            replace(command, argv=("{python}", option, *command.argv[2:])).relocated(other)
    there = replace(command, argv=("{python}", *command.argv[2:])).relocated(other)
    assert there.environment == {"PYTHONPATH": str(moved(other, "src"))}


def test_the_interpreter_of_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A script names it in its first line, by its path or for the PATH; other programs have none."""
    monkeypatch.setenv("PATH", str(tmp_path))
    python = tmp_path / "python3"
    python.touch(mode=0o755)
    for text, found in {
        "#! /opt/python3.11 -u\n": "/opt/python3.11",
        "#!/usr/bin/env -S python3 -u\n": str(python),
        "#!/usr/bin/env\n": None,
        "#!/bin/sh\nexec python3 app.py": None,
        "#!\n": None,
        "\x7fELF": None,
        "": None,
    }.items():
        (tmp_path / "serve").write_text(text)
        assert interpreter_of(str(tmp_path / "serve")) == found, text
    assert interpreter_of(str(python)) == str(python)
    assert interpreter_of("no-such-program") is None


def test_a_hook_before_the_path_is_found_out(root: Path, other: Relocation, interpreter: Interpreter) -> None:
    """An import hook that precedes the path would import this checkout's code: an error says what helps."""
    interpreter.editable(root, hooked="sys.meta_path.insert(0, Finder)")
    with pytest.raises(NotInRevision, match=r"would import package from this checkout[\s\S]*without --editable"):
        relocate(other, interpreter)


def test_the_interpreter_of_the_test_counts_with_another_one(
    root: Path, other: Relocation, interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other interpreter has other packages, and need not have the project: its code is that of the worktree."""
    interpreter.editable(root, hooked="sys.meta_path.append(Finder)")
    monkeypatch.setattr(sys, "executable", interpreter.python)
    plain = Interpreter(tmp_path / "plain")
    for worktree, inside in ((other.worktree, moved(other, "src")), (None, root / "src")):
        environment = relocate(Relocation(root, worktree, plain.python), interpreter)
        assert plain.imports("package", environment, root) == str(inside / "package/__init__.py")


@pytest.mark.parametrize("ignored", [True, False])
def test_a_venv_in_the_checkout_is_data(root: Path, other: Relocation, *, ignored: bool) -> None:
    """The packages of a ``.venv`` in the checkout are neither moved nor put before anything, nor new code."""
    if not ignored:
        (root / ".gitignore").write_text("")
    inside = Interpreter(root / ".venv")
    standard = root / ".venv" / "lib" / "standard"
    write(standard, {"http2/__init__.py": ""})
    write(inside.site, {"served/__init__.py": "", "more.pth": f"{standard}\n"})
    inside.pth(str(root / "src"))
    (inside.site / "package").mkdir()
    for words in ((), ("-m", "served"), ("-m", "http2")):
        assert relocate(other, inside, *words)["PYTHONPATH"] == str(moved(other, "src"))
    assert other.interpreter(inside.python) == inside.python


def test_an_interpreter_that_talks_or_fails(interpreter: Interpreter, root: Path, other: Relocation) -> None:
    """An interpreter may print at its start; one that cannot answer is reported with its own words."""
    # What lies beside the app is not imported by the question.
    (root / "apps" / "json.py").write_text("raise SystemExit(3)")
    assert relocate(other, interpreter) == {}
    interpreter.pth("import sys; sys.stdout.write('hello')")
    assert interpreter.site in import_roots(interpreter.python, dict(os.environ), root)
    with pytest.raises(ServerFailed, match="No module named 'encodings'"):
        import_roots(interpreter.python, {"PYTHONHOME": "/nowhere"}, root)
    with pytest.raises(ServerFailed, match="No such file"):
        import_roots("/no/such/python", {}, root)


def mosec(root: Path, app: str = "apps/app.py", **fields: object) -> Mosec:
    """A server of the project's."""
    stage = fields.pop("stage", None)
    return Mosec(App("mosec_server", root / app, app, **fields), stage=stage)  # type: ignore[arg-type] # any field of it


def test_a_mosec_server_moves(root: Path, other: Relocation, monkeypatch: pytest.MonkeyPatch) -> None:
    """App, working folder, arguments and variables are the other side's; the workload is the same."""
    monkeypatch.setenv("MODELS", str(root / "models"))
    monkeypatch.setenv("MOSEC_MODELS", str(root / "models"))
    arguments = {"model": f"{root}/models/a", "checkpoint": "../weights/deep", "workers": 2, "debug": True}
    environment = {"CONFIG": f"{root}/models", "PLAIN": "1"}
    kind = mosec(root, arguments=arguments, environment=environment, stage="Inference_2")
    there = kind.relocated(other)
    launch = there.launch(SITE)
    assert launch.argv[:2] == (sys.executable, str(moved(other, "apps/app.py")))
    assert launch.cwd == moved(other, "apps")
    model, checkpoint = f"--model={moved(other, 'models/a')}", f"--checkpoint={root}/apps/../weights/deep"
    assert {model, checkpoint, "--workers=2", "--debug"} <= set(launch.argv)
    assert launch.environment["CONFIG"] == launch.environment["MODELS"] == str(moved(other, "models"))
    assert launch.environment["PLAIN"] == "1"
    assert "MOSEC_MODELS" not in launch.environment
    assert (there.app.shown, there.stage, there.name) == (kind.app.shown, kind.stage, kind.name)


def test_the_app_is_that_of_the_revision(root: Path, other: Relocation) -> None:
    """The hash is that of the file which runs; a new app, one that git ignores or does not know is named."""
    (root / "apps" / "app.py").write_text("print()")
    kind = mosec(root)
    assert kind.relocated(other).information() != kind.information()
    for app in ("apps/new.py", "untracked/u.bin", "weights/deep/w.bin"):
        with pytest.raises(NotInRevision, match=f"origin/main has no {app}"):
            mosec(root, app).relocated(other)


def test_only_the_tests_own_interpreter_is_replaced(root: Path, other: Relocation, tmp_path: Path) -> None:
    """A server with an interpreter of its own keeps it; without another revision nothing would then differ."""
    own, another = Interpreter(tmp_path / "pinned"), Interpreter(tmp_path / "another").python
    own.pth(str(root / "src"))
    pinned = mosec(root, python=own.python)
    alone, both = Relocation(root, None, another), Relocation(root, other.worktree, another)
    assert mosec(root).relocated(alone).launch(SITE).argv[:2] == (another, str(root / "apps/app.py"))
    assert pinned.relocated(both).launch(SITE).argv[:2] == (own.python, str(moved(other, "apps/app.py")))
    with pytest.raises(NotInRevision, match=r"mosec_server\(apps[\s\S]*would be the same[\s\S]*leave out python="):
        pinned.relocated(alone)


def test_an_app_outside_of_the_checkout(
    root: Path, other: Relocation, interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is another server only by what it imports from the checkout; that PWD names the checkout makes none of it."""
    app = tmp_path / "outside.py"
    app.write_text("")
    kind = Mosec(App("mosec_server", app, "outside.py", python=interpreter.python))
    monkeypatch.setenv("PWD", str(root))
    with pytest.raises(NotInRevision, match="keep the app in it"):
        kind.relocated(other)
    interpreter.pth(str(root / "src"))
    assert kind.relocated(other).app.environment["PYTHONPATH"] == str(moved(other, "src"))


def test_an_interpreter_is_found(interpreter: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter is found by its path, a relative path or the PATH, and its link is not followed."""
    python = Path(interpreter.python)
    assert python.is_symlink()
    monkeypatch.setenv("PATH", str(python.parent))
    for name in (str(python), "venv with space/bin/python", "python"):
        assert find_python(name, tmp_path) == str(python)
    assert find_python("../bin/./python", python.parents[1] / "lib") == str(python)


@pytest.mark.parametrize(
    ("name", "text", "mode", "found"),
    [
        ("./absent", None, 0, "the file does not exist"),
        ("", None, 0, "no name"),
        ("./file", "", 0o644, "Permission denied"),
        ("./file", "#!/bin/sh\necho broken >&2; exit 3\n", 0o755, "broken"),
        ("./file", "#!/bin/sh\necho '[3, 6, 1]'\n", 0o755, "its version is [3, 6, 1]"),
        ("./file", "#!/bin/sh\necho '{}'\n", 0o755, "{}"),
    ],
)
def test_what_is_no_python(tmp_path: Path, name: str, text: str | None, mode: int, found: str) -> None:
    """A file that is not a usable Python is refused with what it did."""
    if text is not None:
        (tmp_path / "file").write_text(text)
        (tmp_path / "file").chmod(mode)
    with pytest.raises(UsageProblem) as told:
        find_python(name, tmp_path)
    assert found in told.value.found
    assert f"--against-python={name}" in str(told.value)
