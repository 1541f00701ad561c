"""The command, with real servers: what it asks, what it writes, and what it says of a user's mistakes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import yaml

from pytest_gpuserve.new.__main__ import main
from pytest_gpuserve.servers import instance
from tests.fakes.own_locks import LOCKS_VARIABLE, OWN_LOCKS
from tests.plugin.conftest import REPOSITORY, busy_machine
from tests.support.plain_git import git

FAKES = Path(__file__).parents[1] / "fakes"

HTTP_APP = """
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    count = 0
    def do_GET(self):
        Handler.count += 1
        body = str(Handler.count).encode() if self.path == "/count" else b"x" * 100
        self.send_response({"/missing": 404, "/broken": 500}.get(self.path, 200))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
if "--fail" in sys.argv:
    sys.exit("no weights here")
ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1].partition("=")[2])), Handler).serve_forever()
"""

LITSERVE_APP = """
import litserve
class Square(litserve.LitAPI):
    def setup(self, device):
        pass
    def decode_request(self, request):
        return request["input"]
    def predict(self, x):
        return x + 1
    def encode_response(self, output):
        return {"sum": output}
if __name__ == "__main__":
    litserve.LitServer(Square(), accelerator="cpu").run(port=8000)
"""

TRITON_CONFIG = """
backend: "python"
max_batch_size: 8
input [{name: "X" data_type: TYPE_FP32 dims: [2]}]
output [{name: "Y" data_type: TYPE_FP32 dims: [2]}]
"""

TRITON_MODEL = """
import triton_python_backend_utils as pb
class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb.get_input_tensor_by_name(each, "X").as_numpy() for each in requests]
        return [pb.InferenceResponse([pb.Tensor("Y", each + 1)]) for each in inputs]
"""

CLOCK = """
import time, fastapi
app = fastapi.FastAPI()
@app.get("/")
def now() -> dict:
    return {"text": "now", "at": time.perf_counter()}
"""

COMMAND = ["--", "python", "web.py", "--port={port}"]


@pytest.fixture
def project(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project, in which the command is given; the logs that a failed command leaves are pytest's to remove."""
    (tmp_path / "web.py").write_text(HTTP_APP)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path_factory.mktemp("temp")))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes]:
    """All files below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_written_suite_measures_its_app(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The suite of a FastAPI app runs unedited: beside its own commit the app is not slower."""
    pytest.importorskip("fastapi")
    shutil.copy(FAKES / "fastapi_app.py", project / "main.py")
    assert main(["main.py"]) == 0
    told = capfd.readouterr().out
    assert 'command: POST /predict with {"text": "aaa"' in told
    assert "guess" not in told
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "An app"]):
        git(project, *words)
    options = ["--gpu=cpu", "--against=HEAD", "--on-inconclusive=skip", "--gpuserve-json=result.json"]
    # A busy machine is not the suite's fault.
    options += ["-p", "pytest_gpuserve.plugin", "--gpuserve-budget=10", "-o", "gpuserve_foreign_cores=99"]
    for _ in range(2):  # a machine on which a server does not start in time is no fault of the suite, either
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "suites/main", *options, *OWN_LOCKS],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), LOCKS_VARIABLE: str(project)},
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        (test,) = json.loads((project / "result.json").read_text())["tests"]
        if test["run"] is not None:
            break
    assert test["run"] is not None, done.stdout
    assert test["run"]["requests"] > 0
    if not busy_machine(test["run"]):
        assert done.returncode == 0, done.stdout


def test_a_request_that_the_app_does_not_tell_is_said_to_be_a_guess(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """If the app cannot be imported, the terminal and the suite say that the request is a guess."""
    pytest.importorskip("fastapi")
    (project / "src").mkdir()
    (project / "src" / "main.py").write_text(CLOCK)
    assert main(["--", "python", "-m", "uvicorn", "--app-dir=src", "main:app", "--port={port}"]) == 0
    told = capfd.readouterr().out
    assert "the request is a guess: main:app could not be imported: ModuleNotFoundError: No module named 'main'" in told
    written = (project / "suites/main/test_main.py").read_text()
    assert "The request is a guess" in written
    assert "FIELDS = ['at', 'text']\n" in written
    assert "expect=lambda body: json.loads(body).keys() >= {*FIELDS}," in written
    compile(written, "test_main.py", "exec")


def test_a_second_command_leaves_all_files_as_they_are(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A second command leaves all files as they are, also edited ones, and names them."""
    assert main(COMMAND) == 0
    (project / "suites/web/conftest.py").write_text("# mine\n")
    before = contents(project)
    capfd.readouterr()
    assert main(["--path=/count", *COMMAND]) == 0
    told = capfd.readouterr().out
    assert "wrote" not in told
    for name in ("suites/web/conftest.py", "suites/web/test_web.py", ".github/workflows/gate-web.yml"):
        assert f"left as it is: {name}\n" in told
    assert contents(project) == before


def test_a_litserve_app_is_asked_with_a_number(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Nothing but the file is given."""
    pytest.importorskip("litserve")
    (project / "app.py").write_text(LITSERVE_APP)
    assert main(["app.py", "--name=sum"]) == 0
    assert 'litserve: POST /predict with {"input": 1.0}\nanswered: {"sum":2.0}\n' in capfd.readouterr().out
    assert 'litserve_server("../../app.py")' in (project / "suites/sum/conftest.py").read_text()


def test_a_command_with_a_long_answer(project: Path) -> None:
    """It is kept beside the test; the workflow is YAML that compares a merge with its base, and has no open hole."""
    (project / "venv").symlink_to(sys.prefix)
    assert main(["--python=venv/bin/python", *COMMAND]) == 0
    assert (project / "suites/web/answer.bin").read_bytes() == b"x" * 100
    assert "expect=ANSWER" in (project / "suites/web/test_web.py").read_text()
    call = 'command_server(["{python}", "web.py", "--port={port}"], cwd="../..", python="../../venv/bin/python")'
    assert call in (project / "suites/web/conftest.py").read_text()
    workflow = project / ".github/workflows/gate-web.yml"
    steps = yaml.safe_load(workflow.read_text())["jobs"]["gate"]["steps"]
    assert steps[0]["with"]["fetch-depth"] == 0
    assert any("suites/web --gpu=cpu --against=HEAD^1 " in step.get("run", "") for step in steps)


def test_a_gpu_runner_gets_the_workflows_of_a_gate_a_comment_and_baselines(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A GPU runner gets three workflows with its labels and GPU, also beside a suite; what pip lacks there is told."""
    assert main(COMMAND) == 0
    assert main(["--gpu-runner=self-hosted,gpu", "--gpu=T4", *COMMAND]) == 0
    told = capfd.readouterr().out
    for name, job in (("gate-gpu", "gate"), ("baseline-update", "record")):
        workflow = yaml.safe_load((project / f".github/workflows/{name}.yml").read_text())
        assert (workflow["jobs"][job]["runs-on"], workflow["env"]) == (["self-hosted", "gpu"], {"GPU": "T4"})
        assert any("'pytest-gpuserve[report]'" in step.get("run", "") for step in workflow["jobs"][job]["steps"])
        assert f"  in .github/workflows/{name}.yml, let pip install" in told
    assert "wrote .github/workflows/post-comment.yml\n" in told
    assert "left as it is: suites/web/test_web.py\n" in told


def test_an_answer_that_changes_is_not_expected(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """A changing answer is not expected, and a secret header is read from a variable that the command names."""
    assert main(["--path=/count", "--header=Authorization: Bearer tokenized", *COMMAND]) == 0
    written = (project / "suites/web/test_web.py").read_text()
    assert "expect" not in written
    assert 'headers={"Authorization": os.environ["AUTHORIZATION"]}' in written
    assert "set AUTHORIZATION where the test runs" in capfd.readouterr().out
    assert not any(b"tokenized" in content for content in contents(project).values())


def test_a_server_that_fails_leaves_the_log_that_its_error_names(
    project: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The whole log can be read afterwards; without an error the command leaves no temporary file."""
    temporary = Path(tempfile.gettempdir())
    assert main(["--", "python", "web.py", "--port={port}", "--fail"]) == 2
    (folder,) = temporary.iterdir()
    log = folder / "server.log"
    told = capfd.readouterr().err
    assert f"read its whole log: {log}" in told
    assert "--method" not in told, "another request does not help a server that does not start"
    assert "no weights here" in log.read_text()
    assert main(COMMAND) == 0
    assert list(temporary.iterdir()) == [folder]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.py"], "none.py does not exist"),
        (["web.py"], "-- python web.py --port={port}"),
        ([], "name one app, or one command"),
        (["web.py", *COMMAND], "found: both"),
        (["--", "python", "web.py", "--port={prot}"], "write {port} where the port belongs"),
        (["--", "python", "web.py", "--port={port}", "--fail"], "| no weights here"),
        (["--", "./none", "{port}"], "./none"),
        (["--path=/missing", *COMMAND], "--method=POST --path=/predict --body="),
        (["--path=/broken", *COMMAND], "status 500"),
        (["--path=/broken", *COMMAND], "allow more: --start-timeout=240"),
        (["suites"], "MODEL/config.pbtxt"),
        (["--path=missing", *COMMAND], "slash"),
        (["--header=nothing", *COMMAND], "each name once"),
        (["--body=@none", *COMMAND], "--body none cannot be read"),
        (["--name=taken", *COMMAND], "cannot be written"),
        (["--gpu-runner=self-hosted,gpu", *COMMAND], "python -m pytest_gpuserve.doctor"),
        (["--gpu-runner=gpu]", "--gpu=T4", *COMMAND], "--gpu-runner=self-hosted,gpu"),
        (["--gpu-runner=gpu", "--gpu=Tesla T4", *COMMAND], "--gpu=T4"),
        (["--gpu-runner=gpu", "--gpu=auto", *COMMAND], "found: 'auto'\n  help: on the runner"),
    ],
)
def test_a_mistake_is_told_and_leaves_nothing(
    project: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    """One error without a traceback, with what helps, and exit status 2; no file is written."""
    monkeypatch.setattr(instance, "FAILING_SHARE", 0.002)
    (project / "suites").mkdir()
    # A file where a folder belongs is not taken for a file of the suite that is there already.
    (project / "suites" / "taken").touch()
    before = contents(project)
    assert main(arguments) == 2
    told = capfd.readouterr().err
    assert said in told
    assert "Traceback" not in told
    assert contents(project) == before


def test_a_model_repository_is_asked_in_its_own_shapes(project: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The request to a real Triton model has the shapes that the model reports."""
    pytest.importorskip("pytriton")
    model = project / "models" / "echo"
    (model / "1").mkdir(parents=True)
    (model / "config.pbtxt").write_text(TRITON_CONFIG)
    (model / "1" / "model.py").write_text(TRITON_MODEL)
    assert main(["models"]) == 0
    told = capfd.readouterr().out
    assert '[{"name": "X", "shape": [1, 2], "datatype": "FP32", "data": [0, 0]}]' in told
    assert '"data":[1.0,1.0]' in told
    assert 'triton_server("../../models")' in (project / "suites/models/conftest.py").read_text()
