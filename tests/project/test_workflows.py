"""Workflows, of this project and as ``new`` writes them, and the action: a pull request's code gets no token."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_gpuserve.new.files import workflow_files
from pytest_gpuserve.plugin.options import add_options
from pytest_gpuserve.report.markdown import MARKER, comment
from tests.support.markdown_results import HOSTILE, hostile_result, many

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / ".github" / "workflows"

OWN = "ci.yml"
"""This project's own workflow; ``new`` writes the others."""

INSTALL = "'pytest-gpuserve[mosec,report]' -r requirements.txt"

TEXTS = {
    OWN: (FOLDER / OWN).read_text(encoding="utf-8"),
    **workflow_files("app", INSTALL, None),
    **workflow_files("app", INSTALL, ("self-hosted,linux", "T4")),
}

NAMES = sorted(TEXTS)

GATES = ["gate-gpu.yml", "gate-app.yml"]

OF_OTHERS = {"--junitxml", "--"}
"""Options of pytest."""

WRITES = {"post-comment.yml": {"pull-requests"}, "baseline-update.yml": {"contents", "pull-requests"}}
"""The only workflows that may write, and what."""

Job = dict[str, Any]


def workflow(name: str) -> dict[str, Any]:
    """A workflow as GitHub reads it; to YAML 1.1 the key ``on`` is a truth value."""
    plain: dict[Any, Any] = yaml.safe_load(TEXTS[name])
    plain["on"] = plain.pop(True)
    return plain


def events(name: str) -> set[str]:
    """The events that start a workflow."""
    return set(workflow(name)["on"])


def jobs(name: str) -> dict[str, Job]:
    """The jobs of a workflow."""
    found: dict[str, Job] = workflow(name)["jobs"]
    return found


def steps(name: str, action: str = "") -> list[dict[str, Any]]:
    """The steps of all jobs; with an action's name those that use it."""
    return [
        step
        for job in jobs(name).values()
        for step in job["steps"]
        if not action or step.get("uses", "").startswith(f"{action}@")
    ]


def strings(value: object) -> Iterator[str]:
    """All texts in plain data, names of fields too."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from (str(key), *strings(each))
    elif isinstance(value, list):
        for each in value:
            yield from strings(each)
    else:
        yield str(value)


@pytest.mark.parametrize("name", NAMES)
def test_a_job_has_a_limit_and_rights_by_name(name: str) -> None:
    """No runner is held for six hours; no token has the default rights, and what may write is known."""
    assert all(job["timeout-minutes"] <= 120 for job in jobs(name).values())
    plain = workflow(name)
    assert isinstance(plain["permissions"], dict)
    given = [plain["permissions"], *(job.get("permissions", {}) for job in plain["jobs"].values())]
    written = {scope for each in given for scope, right in each.items() if right != "read"}
    assert written == WRITES.get(name, set())
    if written:
        assert plain["permissions"] == {}


@pytest.mark.parametrize("name", NAMES)
def test_a_pull_requests_code_gets_nothing(name: str) -> None:
    """No secret, no token, no right to write; and no event that would lend it those of the repository."""
    assert "pull_request_target" not in events(name)
    if not events(name) & {"pull_request"}:
        return
    plain = workflow(name)
    assert not any(re.search(r"\bsecrets\b|github\.token|GITHUB_TOKEN|GH_TOKEN", text) for text in strings(plain))
    assert plain["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in plain["jobs"].values())
    assert all("ref" not in step["with"] for step in steps(name, "actions/checkout"))


def test_what_posts_runs_nothing() -> None:
    """The privileged job checks nothing out, runs no shell, and reads the artifact into a folder of its own."""
    name = "post-comment.yml"
    assert events(name) == {"workflow_run"}
    used = [step["uses"].partition("@")[0] for step in steps(name)]
    assert used == ["actions/download-artifact", "actions/github-script"]
    (download,) = steps(name, "actions/download-artifact")
    assert download["with"]["path"].startswith("${{ runner.temp }}/")
    assert not any("secrets" in text for text in strings(workflow(name)))


def test_what_posts_follows_the_gate_on_a_gpu() -> None:
    """A workflow is followed by its name, an artifact is found by its own."""
    gate, post = "gate-gpu.yml", "post-comment.yml"
    assert workflow(post)["on"]["workflow_run"]["workflows"] == [workflow(gate)["name"]]
    (upload,), (download,) = steps(gate, "actions/upload-artifact"), steps(post, "actions/download-artifact")
    assert {name: download["with"][name] for name in ("name", "path")} == {
        name: upload["with"][name] for name in ("name", "path")
    }
    assert upload["if"] == "always()"


def test_what_is_recorded_is_what_is_proposed() -> None:
    """The job that may write gets the folders that the job that measures has kept."""
    kept, got = (
        {
            step["with"]["name"]: step["with"]["path"]
            for step in steps("baseline-update.yml", f"actions/{what}-artifact")
        }
        for what in ("upload", "download")
    )
    assert kept == got
    assert kept["baselines"] == "baselines/${{ env.GPU }}"


@pytest.mark.parametrize("name", GATES)
def test_what_a_red_run_has_measured_is_kept(name: str) -> None:
    """A gate that fails is the one that is run again: what it measured is saved, and the next attempt restores it."""
    # That one saves only where the whole job went well.
    assert steps(name, "actions/cache") == []
    (restore,) = steps(name, "actions/cache/restore")
    (save,) = steps(name, "actions/cache/save")
    (gate,) = [step for step in steps(name) if step.get("name") == "Gate"]
    order = steps(name)
    assert order.index(restore) < order.index(gate) < order.index(save)
    assert save["if"] == "always()"
    assert save["with"]["path"] == restore["with"]["path"] == "${{ runner.temp }}/pytest-cache"
    assert '-o cache_dir="$RUNNER_TEMP/pytest-cache"' in gate["run"]
    key = save["with"]["key"]
    assert key == restore["with"]["key"]
    # A key is written once, so that each attempt needs its own. That is never there yet: what is restored is the latest
    # that begins like it, of the same commit if there is one.
    commit = "${{ github.event.pull_request.head.sha }}-"
    prefix, rest = key.split(commit)
    assert rest == "${{ github.run_id }}-${{ github.run_attempt }}"
    assert restore["with"]["restore-keys"].splitlines() == [f"{prefix}{commit}", prefix]


@pytest.mark.parametrize("name", [*GATES, "baseline-update.yml"])
def test_the_page_of_a_run_shows_the_comment(name: str, tmp_path: Path) -> None:
    """A step appends the file that pytest wrote, also after a red run, and fails a gate that measured nothing."""
    order = steps(name)
    (shows,) = [step for step in order if "GITHUB_STEP_SUMMARY" in step.get("run", "")]
    (measures,) = [step for step in order if "bin/pytest" in step.get("run", "")]
    assert order.index(measures) < order.index(shows)
    assert shows["if"] == "always()"
    (written,) = re.findall(r"--gpuserve-markdown=\"\$RUNNER_TEMP/(\S+)\"", measures["run"])
    comment_file, summary = tmp_path / written, tmp_path / "summary"
    comment_file.parent.mkdir()
    comment_file.write_text("the comment\n")
    summary.write_text("another step\n")
    variables = {"RUNNER_TEMP": str(tmp_path), "GITHUB_STEP_SUMMARY": str(summary)}
    _shell(shows["run"], variables)
    assert summary.read_text() == "another step\nthe comment\n"
    if name in GATES:
        comment_file.unlink()
        with pytest.raises(subprocess.CalledProcessError) as failed:
            _shell(shows["run"], variables)
        assert b"::error title=Performance gate::no test in suites/" in failed.value.stdout


@pytest.mark.parametrize("name", GATES)
def test_a_gate_is_never_skipped(name: str) -> None:
    """GitHub counts a required check that was skipped as passed, so that no condition may skip it."""
    assert not any("if" in job for job in jobs(name).values())
    assert not any("continue-on-error" in each for each in (*jobs(name).values(), *steps(name)))


def test_a_gate_on_a_gpu_compares_with_the_base_until_there_are_baselines(tmp_path: Path) -> None:
    """A repository that has recorded nothing is gated all the same."""
    (step,) = [step for step in steps("gate-gpu.yml") if step.get("name") == "Gate"]
    script = step["run"].replace('"$RUNNER_TEMP/venv/bin/pytest"', "printf '%s\\n'")
    environment = {"GPU": "T4", "RUNNER_TEMP": "/tmp"}
    assert "--against=HEAD^1" in _shell(script, environment, tmp_path).splitlines()
    (tmp_path / "baselines").mkdir()
    assert "--against" not in _shell(script, environment, tmp_path)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("gate", "baseline"))])
def test_the_options_exist(name: str) -> None:
    """A workflow types no option that the plugin does not have."""
    parser = pytest.Parser(_ispytest=True)
    add_options(parser)
    known = {flag for group in (parser._anonymous, *parser._groups) for each in group.options for flag in each.names()}
    typed = {
        flag
        for step in steps(name)
        if "bin/pytest" in step.get("run", "")
        for flag in re.findall(r"(?<=[\s\"])(--[a-z-]+)(?==|\s)", step["run"])
    }
    assert {"--gpu", "--gpuserve-json", "--gpuserve-report", "--gpuserve-markdown"} <= typed
    assert typed - known <= OF_OTHERS


def test_recording_is_told_why() -> None:
    """The typed reason reaches pytest as one argument, and an empty one as none."""
    (step,) = [step for step in steps("baseline-update.yml") if step.get("name") == "Record"]
    assert step["env"] == {"TESTS": "${{ inputs.tests }}", "REASON": "${{ inputs.reason }}"}
    script = step["run"].replace('"$RUNNER_TEMP/venv/bin/pytest"', "printf '%s\\0'")
    for reason in ("", 'it\'s "worth" $(touch x) `id` * it'):
        words = _shell(script, {"TESTS": "suites/a b", "REASON": reason, "GPU": "T4", "RUNNER_TEMP": "/tmp"}).split(
            "\0"
        )
        assert [word for word in words if word.startswith("--reason")] == ([f"--reason={reason}"] if reason else [])
        assert words[-3:] == ["--", "suites/a b", ""]


def _shell(script: str, environment: dict[str, str], folder: Path = ROOT) -> str:
    command = ["bash", "-e", "-c", script]
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        check=True,
        timeout=60,
    )
    return done.stdout.decode()


@pytest.mark.parametrize("linter", ["actionlint", "zizmor --offline"])
def test_linters_have_nothing_to_say(linter: str, tmp_path: Path) -> None:
    """Expressions, contexts, events and shell scripts are valid to GitHub, and open no known hole."""
    name, *arguments = linter.split()
    beside = str(Path(sys.executable).parent)
    program = shutil.which(name, path=beside) or shutil.which(name)
    if program is None:
        pytest.skip(f"needs {name}")
    # The one knows workflows alone.
    actions = [str(ROOT / ".github" / "actions")] if name == "zizmor" else []
    for each, text in TEXTS.items():
        (tmp_path / each).write_text(text, encoding="utf-8")
    command = [program, *arguments, *(str(tmp_path / each) for each in NAMES), *actions]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# -- the privileged script that writes a comment, run as its runner would, with made-up answers

HEAD = "0123456789abcdef0123456789abcdef01234567"

PULL = {"number": 7, "head": {"sha": HEAD, "repo": {"id": 1}}}

RUN = {
    "head_sha": HEAD,
    "head_branch": "feature",
    "head_repository": {"id": 1, "owner": {"login": "stranger"}},
    "html_url": "https://github.com/your-org/your-repo/actions/runs/1",
    "conclusion": "failure",
}

FAKES = """
const { script, cases } = JSON.parse(require('fs').readFileSync(0, 'utf8'));
const AsyncFunction = (async () => {}).constructor;
const body = new AsyncFunction('github', 'context', 'core', 'require', script);
const calledFor = async ({ folder, run, pulls, comments }) => {
  const called = {};
  const call = (name) => async (given) => { called[name] = given; };
  const lists = { pulls, comments };
  const github = {
    paginate: async (list, given) => { called[list] = given; return lists[list]; },
    rest: {
      pulls: { list: 'pulls' },
      issues: { listComments: 'comments', createComment: call('create'), updateComment: call('update') },
    },
  };
  const core = { notice: call('notice'), setFailed: call('failed') };
  const context = { repo: { owner: 'your-org', repo: 'your-repo' }, payload: { workflow_run: run } };
  process.env.RUNNER_TEMP = folder;
  await body(github, context, core, require);
  return called;
};
(async () => {
  const all = [];
  for (const each of cases) all.push(await calledFor(each));
  process.stdout.write(JSON.stringify(all));
})();
"""

COMMENT = comment(hostile_result("@octocat"))

node = pytest.mark.skipif(shutil.which("node") is None, reason="needs node")


def called_for(folder: Path, *cases: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of the script by name, for each case: an artifact with a comment, and GitHub's answers."""
    (step,) = steps("post-comment.yml", "actions/github-script")
    made = []
    for number, case in enumerate(cases):
        kept = folder / str(number) / "gpuserve"
        kept.mkdir(parents=True)
        text = case.get("text", COMMENT)
        if text is not None:
            (kept / "comment.md").write_bytes(text if isinstance(text, bytes) else text.encode())
        if "link" in case:
            (kept / "comment.md").symlink_to(case["link"])
        answers = {name: case.get(name, usual) for name, usual in (("run", RUN), ("pulls", [PULL]), ("comments", []))}
        made.append({"folder": str(kept.parent), **answers})
    done = subprocess.run(
        ["node", "-e", FAKES],
        input=json.dumps({"script": step["with"]["script"], "cases": made}),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    called: list[dict[str, Any]] = json.loads(done.stdout)
    return called


def is_refused(called: dict[str, Any]) -> bool:
    """Whether nothing was written, and the job failed."""
    return {"create", "update"}.isdisjoint(called) and "failed" in called


@node
def test_a_comment_is_written(tmp_path: Path) -> None:
    """On the pull request whose commit was measured, below what GitHub itself says of the run."""
    (called,) = called_for(tmp_path, {})
    assert called["pulls"]["head"] == "stranger:feature"
    assert called["create"]["issue_number"] == 7
    marker, origin, *rest = called["create"]["body"].split("\n")
    assert marker.startswith(f"<!-- {MARKER} ")
    assert f'<a href="{RUN["html_url"]}">' in origin
    assert "ended with failure" in origin
    assert [marker, *rest] == COMMENT.removesuffix("\n").split("\n")
    assert {"update", "failed", "notice"}.isdisjoint(called)


@node
def test_the_next_run_renews_it(tmp_path: Path) -> None:
    """Its own one: not a person's who wrote the same line, not that of another device."""
    marker = COMMENT.partition("\n")[0]
    bot = {"login": "github-actions[bot]"}
    comments = [
        {"id": 1, "user": {"login": "stranger"}, "body": f"{marker}\nmine"},
        {"id": 2, "user": bot, "body": "<!-- pytest-gpuserve H200 stored -->\n"},
        {"id": 3, "user": bot, "body": f"{marker}\nold"},
        {"id": 4, "user": None, "body": None},
    ]
    (called,) = called_for(tmp_path, {"comments": comments})
    assert called["update"]["comment_id"] == 3
    assert "create" not in called


@node
def test_without_the_one_pull_request_nothing_is_written(tmp_path: Path) -> None:
    """It was closed, has newer commits, is of another repository, of a fork that is gone, or there are two of them."""
    head: dict[str, Any] = {"sha": HEAD, "repo": {"id": 1}}
    cases: list[list[dict[str, Any]]] = [
        [],
        [{**PULL, "head": {**head, "sha": "f" * 40}}],
        [{**PULL, "head": {**head, "repo": {"id": 2}}}],
        [{**PULL, "head": {**head, "repo": None}}],
        [PULL, {**PULL, "number": 8}],
    ]
    for called in called_for(tmp_path, *({"pulls": pulls} for pulls in cases)):
        assert set(called) == {"pulls", "notice"}
    (called,) = called_for(tmp_path / "gone", {"run": {**RUN, "head_repository": None}})
    assert set(called) == {"notice"}


@node
def test_whatever_we_write_is_posted(tmp_path: Path) -> None:
    """The check refuses nothing that is ours, however a test is called and however long it is."""
    ours = [comment(each) for each in (many(1), many(300), *map(hostile_result, HOSTILE))]
    for text, called in zip(ours, called_for(tmp_path, *({"text": text} for text in ours)), strict=True):
        assert "failed" not in called
        assert called["create"]["body"].endswith(text[-100:].strip())
        assert len(called["create"]["body"].encode()) < 65_536


NOT_OURS = [
    "@octocat",
    *(f"<p>{text}</p>" for text in ("@octocat", "#1", "GH-1", HEAD, "https://example.org", "www.example.org")),
    *(f"<p>{text}</p>" for text in ("&#64;octocat", "[x](y)", "*x*", "`x`", "a|b", "\u202ex", "\u00a0", "p\u0430ypal")),
    '<a href="https://example.org">x</a>',
    "<img src=x>",
    '<p class="x">x</p>',
    "<P>x</P>",
    "<script>x</script>",
    "<style>x</style>",
    "<code><a href=x>x</a></code>",
    "<code>x</pre>",
    "<pre>x",
    "<code>\r\r[x](https://example.org)\r\r</code>",
    "<pre>\x0b</pre>",
    "<p>x</p>\r",
    "<p>x</p>\n\n<code>[x](https://example.org)</code>",
    "<p>x</p>\n \n<p>x</p>",
    "<!-- x",
]


@node
def test_what_is_not_ours_is_not_posted(tmp_path: Path) -> None:
    """A link, a picture, a mention, markdown, a blank line that would begin some: the whole comment is refused."""
    marker, head, *lines = COMMENT.split("\n")
    cases = [{"text": "\n".join((marker, head, line, *lines))} for line in ("<p>ours</p>", *NOT_OURS)]
    ours, *others = called_for(tmp_path, *cases)
    assert not is_refused(ours)
    assert [line for line, called in zip(NOT_OURS, others, strict=True) if not is_refused(called)] == []


@node
def test_another_file_is_not_posted(tmp_path: Path) -> None:
    """None, an empty one, one that would take another tool's comment, one that is too long, a link to another file."""
    (tmp_path / "other").write_text(COMMENT)
    cases: list[dict[str, Any]] = [
        {"text": None},
        {"text": ""},
        {"text": "\n"},
        {"text": COMMENT.replace(f"<!-- {MARKER}", "<!-- coverage")},
        {"text": COMMENT.replace(" stored -->", " stored --> @octocat")},
        {"text": COMMENT.partition("\n")[2]},
        {"text": f"{COMMENT}<p>{'x' * 70_000}</p>"},
        {"text": b"\xff\xfe"},
        {"text": None, "link": tmp_path / "other"},
    ]
    refused = [is_refused(called) for called in called_for(tmp_path, *cases)]
    assert refused == [True] * len(cases)


# -- the action: its shell is run with GitHub's variables set, in a project of a user's; nothing is measured

GATE_FOLDER = ROOT / ".github" / "actions" / "gate"
ACTION: dict[str, Any] = yaml.safe_load((GATE_FOLDER / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]

PYTHON = """#!/bin/sh
if [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; exit; fi
if [ "$2" = pip ]; then printf '%s\\n' "$@" > "$RUNNER_TEMP/pip"; exit; fi
exec {python} "$@"
"""
"""Stands for an interpreter that can install from the network; what it runs is real."""

COMMENTS = (
    "def test_it(): open(__import__('os').environ['RUNNER_TEMP'] + '/gpuserve/comment.md', 'w').write('the comment')"
)
"""Stands for a test that measures, after which pytest writes the comment."""

Gate = tuple[int, str, dict[str, str]]


@pytest.fixture
def gate(tmp_path: Path) -> Callable[..., Gate]:
    """Run the action's script on a test of this text; returns exit status, what it printed, and its outputs."""
    python = tmp_path / "python"
    python.write_text(PYTHON.format(python=sys.executable), encoding="utf-8")
    python.chmod(0o755)
    (tmp_path / "checkout" / "suites").mkdir(parents=True)
    (tmp_path / "temp").mkdir()

    def run(test: str, **inputs: str) -> Gate:
        (tmp_path / "checkout" / "suites" / "test_it.py").write_text(test, encoding="utf-8")
        given = {name: str(each["default"]) for name, each in ACTION["inputs"].items()}
        given |= {"python": str(python), "against": "", "gpu": "cpu"} | inputs
        variables = {f"GATE_{name.upper().replace('-', '_')}": value for name, value in given.items()}
        (step,) = [step for step in STEPS if step.get("id") == "gate"]
        assert set(variables) == set(step["env"])
        output = tmp_path / "output"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "COV_"))}
        done = subprocess.run(
            ["bash", "-e", "-c", step["run"]],
            cwd=tmp_path / "checkout",
            env={
                **kept,
                **variables,
                "GITHUB_ACTION_PATH": str(GATE_FOLDER),
                "GITHUB_OUTPUT": str(output),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"),
                "RUNNER_TEMP": str(tmp_path / "temp"),
                "CI": "true",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        # The last of a name counts.
        outputs = dict(line.split("=", 1) for line in output.read_text(encoding="utf-8").splitlines())
        return done.returncode, done.stdout, outputs

    return run


def test_a_green_gate_leaves_its_results_outside_of_the_checkout(gate: Callable[..., Gate], tmp_path: Path) -> None:
    """Results are in the folder that becomes the artifact, not in the checkout; pip gets each word."""
    status, said, outputs = gate(COMMENTS, install="pytest-gpuserve[mosec,report] -r requirements.txt")
    assert (status, outputs["outcome"]) == (0, "passed"), said
    assert Path(outputs["folder"]) == tmp_path / "temp" / "gpuserve"
    assert "junit.xml" in {path.name for path in Path(outputs["folder"]).iterdir()}
    made = {path.name for path in (tmp_path / "checkout").rglob("*") if path.is_file()}
    assert {name for name in made if not name.endswith(".pyc")} == {"test_it.py"}
    assert (tmp_path / "temp" / "pip").read_text().split()[-3:] == [
        "pytest-gpuserve[mosec,report]",
        "-r",
        "requirements.txt",
    ]


@pytest.mark.parametrize(("on_failure", "expected"), [("fail", 1), ("warn", 0)])
def test_a_red_gate_fails_or_warns(gate: Callable[..., Gate], tmp_path: Path, on_failure: str, expected: int) -> None:
    """Either way the outcome says that it failed, and the page of the run shows the comment."""
    status, said, outputs = gate(f"{COMMENTS}; assert False", **{"on-failure": on_failure})
    assert (status, outputs["outcome"]) == (expected, "failed"), said
    assert (tmp_path / "summary").read_text() == "the comment"
    assert ("::warning " in said) is (on_failure == "warn")


@pytest.mark.parametrize(
    ("body", "inputs"),
    [
        ("pass", {}),
        ("assert False", {}),
        ("pass", {"gpu": "T4000"}),
        ("pass", {"arguments": "--no-such-option"}),
        ("pass", {"paths": "nothing/"}),
        ("pass", {"on-failure": "ignore"}),
    ],
)
def test_what_measures_nothing_is_an_error_that_no_setting_hides(
    gate: Callable[..., Gate], body: str, inputs: dict[str, str]
) -> None:
    """Exit status and outcome, also where a failed gate would only warn."""
    status, said, outputs = gate(f"def test_it(): {body}", **{"on-failure": "warn", **inputs})
    assert (status, outputs["outcome"]) == (4, "error"), said
    assert "::error " in said


def test_what_was_measured_is_kept_whatever_came_of_it() -> None:
    """The cache is saved after any gate under the key of its restore, and inputs reach the shell as variables."""
    assert not any("${{" in step.get("run", "") for step in STEPS)
    restore, gate_step, save, upload = STEPS
    assert "id" in gate_step
    assert save["with"] == {name: restore["with"][name] for name in ("path", "key")}
    assert save["if"] == upload["if"] == "always()"
    prefix = restore["with"]["restore-keys"].splitlines()[0]
    assert restore["with"]["key"] == prefix + "${{ github.run_id }}-${{ github.run_attempt }}"
