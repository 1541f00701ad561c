"""The privileged script that writes a comment on a pull request, run as its runner would, with made-up answers."""

from __future__ import annotations

import json
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from pytest_gpuserve.report.markdown import MARKER, comment
from tests.project.test_workflows import steps
from tests.support.markdown_results import HOSTILE, hostile_result, many

if TYPE_CHECKING:
    from pathlib import Path

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
