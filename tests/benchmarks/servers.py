"""Servers that are loaded here: nginx, one of known service time, and how to look at them."""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_gpuserve.process.child import Command, Process
from pytest_gpuserve.process.ports import free_port
from pytest_gpuserve.process.ready import Ask, http_probe, owned_port_probe, wait
from pytest_gpuserve.units import Deadline
from tests.benchmarks.tools import debian

if TYPE_CHECKING:
    from collections.abc import Iterator

UP_SECONDS = 30.0

NGINX = """
daemon off;
worker_processes 1;
worker_rlimit_nofile 16384;
error_log stderr warn;
pid {folder}/nginx.pid;
events {{ worker_connections 16384; }}
http {{
  access_log off;
  keepalive_requests 1000000000;
  keepalive_timeout 1h;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  server {{
    listen 127.0.0.1:{port} backlog=16384;
    location / {{ default_type text/plain; return 200 "ok"; }}
  }}
}}
"""
"""All that it writes is in a folder of ours, none of it in the system's."""


@contextmanager
def nginx(folder: Path) -> Iterator[str]:
    """Run an nginx of one worker that answers 200 to everything; gives its URL."""
    program = debian("nginx", "nginx-light")
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port))
    argv = (program, "-p", str(folder), "-c", str(configuration), "-e", "stderr")
    with up(argv, folder / "nginx.log", port, "nginx"):
        yield f"http://127.0.0.1:{port}/"


@dataclass(frozen=True)
class Timed:
    """A running server of known service time.

    Args:
        url: What to ask.
        pid: Its process.
        service_seconds: Its time of service.
    """

    url: str
    pid: int
    service_seconds: float


@contextmanager
def timed(folder: Path, service_seconds: float) -> Iterator[Timed]:
    """Run a server of known service time."""
    port = free_port()
    program = Path(__file__).with_name("timed_server.py")
    argv = (sys.executable, str(program), str(port), repr(service_seconds))
    with up(argv, folder / "timed.log", port, "the timed server") as process:
        yield Timed(f"http://127.0.0.1:{port}/", process.pid, service_seconds)


@contextmanager
def up(argv: tuple[str, ...], log: Path, port: int, what: str) -> Iterator[Process]:
    """Run a server for the block, from when it answers on its port."""
    command = Command(argv, dict(os.environ), log.parent, log)
    with Process.start(command) as process:
        deadline = Deadline.after(UP_SECONDS)
        answers = http_probe("127.0.0.1", port, Ask("GET", "/"), deadline=deadline, process=process)
        wait([owned_port_probe(process, port), answers], process, deadline, what=what)
        yield process
