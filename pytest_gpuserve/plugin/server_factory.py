"""Server fixtures: functions that describe a deployment. A load then starts it afresh."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from os import fspath
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.builds.interpreter import find_python
from pytest_gpuserve.device.host import DEFAULT_DISTRIBUTIONS
from pytest_gpuserve.errors import UsageProblem
from pytest_gpuserve.experiment.handle import ServerHandle
from pytest_gpuserve.load.wire import Endpoint, endpoint_of
from pytest_gpuserve.plugin.callers import calling_file
from pytest_gpuserve.servers.app import App, named_arguments, seconds, variables, words
from pytest_gpuserve.servers.base import ServerKind
from pytest_gpuserve.servers.command import CommandServer
from pytest_gpuserve.servers.litserve import LitServe
from pytest_gpuserve.servers.metric_names import metric_names
from pytest_gpuserve.servers.mosec import Mosec
from pytest_gpuserve.servers.pytriton import PyTriton
from pytest_gpuserve.servers.remote import RemoteServer
from pytest_gpuserve.servers.torch_worker import TorchWorker
from pytest_gpuserve.servers.triton import Triton

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from pytest_gpuserve.experiment.handle import Starter
    from pytest_gpuserve.servers.base import Argument
    from pytest_gpuserve.servers.metric_names import Engine, MetricNames

__tracebackhide__ = True
"""Marks this module as not the user's code; see `calling_file`."""

NAME_IT: Final = "name it relative to the file that calls the fixture, or give an absolute path"


@dataclass(frozen=True)
class ServerFactory:
    """Makes deployments of each kind, and with ``deploy`` of any other one.

    All functions take ``start_timeout``, the seconds from launch to the model's first answer. All except ``remote``
    take ``python``, the interpreter that has the server (this one by default), and ``env``, variables for it. ``args``
    are more arguments of the server's command line, unchanged. Files are relative to the file that calls; an
    interpreter may also be a name on the PATH. Impossible values raise `UsageProblem`.

    Args:
        starter_of: Makes the starter of servers on this session's device, given a deadline in seconds.
        shown: Name of a file in baselines.
        distributions: Distributions whose versions can move a number.
        torch_device: Default device of torch workers: ``cuda`` if a GPU is measured.
    """

    starter_of: Callable[[float], Starter]
    shown: Callable[[Path], str]
    distributions: tuple[str, ...] = DEFAULT_DISTRIBUTIONS
    torch_device: str = "cpu"

    def mosec(
        self,
        app: str | Path,
        *,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        stage: str | None = None,
        start_timeout: float = 120.0,
        **arguments: Argument,
    ) -> ServerHandle:
        """Describe a deployment of a mosec app: a file that calls ``Server().run()``.

        Args:
            stage: The stage whose batches are counted, such as ``Inference_2``. Default: the last one that batches.
            **arguments: Arguments of the app and of mosec: ``inference_workers=2`` becomes ``--inference-workers=2``.

        Raises:
            UsageProblem: The file does not exist, or an argument is one that the fixture sets, such as ``--port``.
        """
        found = self.app("mosec_server", app, python=python, env=env, args=args, arguments=arguments)
        return self.deploy(Mosec(found, stage=stage), start_timeout)

    def litserve(
        self,
        app: str | Path,
        *,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        start_timeout: float = 120.0,
        **arguments: Argument,
    ) -> ServerHandle:
        """Describe a deployment of a LitServe app: a file that calls ``LitServer(...).run()``, unchanged.

        Args:
            **arguments: Arguments of the app, as for ``mosec_server``.

        Raises:
            UsageProblem: The file does not exist.
        """
        return self.deploy(
            LitServe(self.app("litserve_server", app, python=python, env=env, args=args, arguments=arguments)),
            start_timeout,
        )

    def pytriton(
        self,
        app: str | Path,
        *,
        model: str,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        start_timeout: float = 120.0,
        **arguments: Argument,
    ) -> ServerHandle:
        """Describe a deployment of a pytriton app: a file that binds functions and calls ``triton.serve()``.

        Args:
            model: Name of the measured model, as the app binds it.
            **arguments: Arguments of the app, as for ``mosec_server``.

        Raises:
            UsageProblem: The file does not exist, or the model has no name.
        """
        found = self.app("pytriton_server", app, python=python, env=env, args=args, arguments=arguments)
        return self.deploy(PyTriton(found, model), start_timeout)

    def triton(
        self,
        model_repository: str | Path,
        *,
        models: Sequence[str] = (),
        model: str | None = None,
        asked: str | None = None,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        server: str | Path = "",
        start_timeout: float = 120.0,
        **arguments: Argument,
    ) -> ServerHandle:
        """Describe a deployment of Triton with a model repository.

        Args:
            model_repository: The folder of the models. Triton only reads it.
            models: The models to load. Triton also loads the models of a listed ensemble. Default: all.
            model: The model whose batches are counted. Default: the only one that batches.
            asked: The model that the requests name. Default: the only model, the only ensemble, or else ``model``.
            python: Interpreter with nvidia-pytriton, whose wheel carries Triton, and with the packages of the models.
            server: Program of another Triton, by name or path, such as ``tritonserver`` in NVIDIA's image.
            **arguments: Triton's options: ``http_thread_count=4`` becomes ``--http-thread-count=4``.

        Raises:
            UsageProblem: The repository or model does not exist, or the fixture sets the option itself.
        """
        repository = self.place(model_repository)
        if not repository.is_dir():
            raise UsageProblem(f"triton_server: the model repository {repository} does not exist", remedies=[NAME_IT])
        kind = Triton(
            repository,
            self.shown(repository),
            models=words("triton_server(models=...)", models),
            model=model,
            asked=asked,
            arguments=named_arguments("triton_server", arguments),
            extra=words("triton_server(args=...)", args),
            environment=variables("triton_server", env),
            python=self.interpreter(python),
            server=str(self.place(server)) if os.sep in str(server) else str(server),
        )
        return self.deploy(kind, start_timeout)

    def torch_worker(
        self,
        model: str,
        *,
        weights: str | Path | None = None,
        compile: bool = False,  # noqa: A002 -- torch's own word for it
        compile_backend: str | None = None,
        compile_mode: str | None = None,
        device: str | None = None,
        workers: int = 1,
        max_batch_size: int = 1,
        max_wait_ms: float = 0.0,
        seed: int = 0,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Mapping[str, Argument] | None = None,
        start_timeout: float = 300.0,
    ) -> ServerHandle:
        """Describe a deployment of a torch model in a process of its own. A request is ``server.infer({...})``.

        Args:
            model: ``FILE.py:CALLABLE``, where the callable returns a ``torch.nn.Module``.
            weights: File of ``torch.save(model.state_dict(), FILE)``. Default: the weights that the callable makes.
                ``seed`` fixes random weights.
            compile: Compiles the model: ``torch.compile(model, backend=compile_backend, mode=compile_mode)``.
            device: ``cpu``, ``cuda`` or ``cuda:N``. Default: the device that the run measures.
            workers: Threads that execute the model. With ``compile`` it must be 1.
            max_batch_size: Most rows of a batch. With 1, the worker executes each request by itself.
            max_wait_ms: Longest time that a request waits for others, in milliseconds.
            args: Keyword arguments of the callable.
            start_timeout: Seconds from launch to the model's first answer, compilation included.

        Raises:
            UsageProblem: The file does not exist, an argument is out of range, or two do not go together.
        """
        file, _, name = model.rpartition(":")
        if not file or not name:
            raise UsageProblem(
                f"torch_worker({model!r}): name a file and a callable in it that returns the model",
                remedies=['torch_worker("apps/resnet.py:resnet18")'],
            )
        if args is not None and not isinstance(args, Mapping):
            raise UsageProblem(
                "torch_worker(args=...) takes keyword arguments of the callable, by name",
                remedies=['args={"width": 64}'],
            )
        kind = TorchWorker(
            self.app("torch_worker", file, python=python, env=env, args=(), arguments=args or {}),
            name,
            weights=None if weights is None else self.place(weights),
            compile=compile,
            compile_backend=compile_backend,
            compile_mode=compile_mode,
            device=self.torch_device if device is None else device,
            workers=workers,
            max_batch_size=max_batch_size,
            max_wait_ms=max_wait_ms,
            seed=seed,
        )
        return self.deploy(kind, start_timeout)

    def command(
        self,
        argv: Sequence[str],
        *,
        ready: str = "",
        counters: MetricNames | Engine | None = None,
        model: str = "",
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path = ".",
        start_timeout: float = 120.0,
    ) -> ServerHandle:
        """Describe a deployment of any command that starts a server with an HTTP port.

        Args:
            argv: Program and arguments. The plugin replaces ``{port}`` by the port to listen on, ``{folder}`` by a
                private folder, and ``{python}`` by the interpreter. The server must listen on 127.0.0.1.
            ready: A path, such as ``/health``. The plugin sends the first request after this path has answered 200.
            counters: Names of the server's Prometheus metrics, or one of ``vllm``, ``sglang``, ``llama.cpp``,
                ``trtllm`` and ``tgi``. Without counters the batching ratio is unknown.
            model: Default for ``model=`` of a request.
            env: Variables for the server, with the same replacements as ``argv``.
            cwd: Working folder, relative to the file that calls the fixture.

        Raises:
            UsageProblem: The command is empty, or neither it nor ``env`` has ``{port}``.
        """
        folder = self.place(cwd)
        if not folder.is_dir():
            raise UsageProblem(f"command_server(cwd=...): the folder {folder} does not exist", remedies=[NAME_IT])
        kind = CommandServer(
            argv=words("command_server", argv),
            cwd=folder,
            shown=self.shown(folder),
            python=self.interpreter(python),
            health=ready,
            counters=metric_names("command_server", counters),
            environment=variables("command_server", env),
            default_model=model,
        )
        return self.deploy(kind, start_timeout)

    def remote(
        self,
        url: str,
        *,
        counters: MetricNames | Engine | None = None,
        metrics_port: int = 0,
        grpc_port: int = 0,
        ca_file: str | Path = "",
        model: str = "",
        start_timeout: float = 30.0,
    ) -> ServerHandle:
        """Describe a server that runs already. The plugin never starts or stops it.

        Args:
            url: ``http://HOST:PORT`` or ``https://HOST:PORT``, without a path.
            counters: As for ``command_server``.
            metrics_port: Port of the metrics, if it is another one. The plugin reads it without TLS.
            grpc_port: Port of gRPC.
            ca_file: Certificates to trust instead of the system's.
            model: Default for ``model=`` of a request.

        Raises:
            UsageProblem: ``url`` has another form.
        """
        endpoint = _server_at(url)
        if ca_file and endpoint.tls is None:
            raise UsageProblem(
                "remote_server(..., ca_file=...): certificates are used only with TLS",
                remedies=["https://HOST:PORT, or leave out ca_file=..."],
            )
        kind = RemoteServer(
            endpoint.host,
            endpoint.port,
            tls=endpoint.tls is not None,
            ca_file=str(self.place(ca_file)) if ca_file else "",
            grpc_port=grpc_port,
            counters=metric_names("remote_server", counters),
            metrics_port=metrics_port,
            default_model=model,
        )
        return self.deploy(kind, start_timeout)

    def deploy(self, kind: ServerKind, start_timeout: float = 120.0) -> ServerHandle:
        """Describe a deployment of a server of any kind.

        Args:
            kind: The server: an instance of your class.

        Raises:
            UsageProblem: ``kind`` lacks a method or field of `ServerKind`, or ``start_timeout`` is not above 0.
        """
        lacking = [name for name in dir(ServerKind) if not name.startswith("_") and not hasattr(kind, name)]
        if lacking:
            raise UsageProblem(
                f"gpuserve_servers.deploy(...): {type(kind).__name__} is not a kind of server",
                found=f"it lacks {', '.join(lacking)}",
                remedies=["inherit from AppServer of pytest_gpuserve.servers.app: see how-to/add_a_server.md"],
            )
        return ServerHandle(kind, self.starter_of(seconds("start_timeout", start_timeout)))

    def app(
        self,
        fixture: str,
        file: str | Path,
        *,
        python: str | None = None,
        env: Mapping[str, str] | None = None,
        args: Sequence[str] = (),
        arguments: Mapping[str, Argument] | None = None,
    ) -> App:
        """Return an app file as an `App`, with interpreter, command line and variables.

        Args:
            fixture: Name of your fixture, for messages.
            arguments: Named arguments of the command line.

        Raises:
            UsageProblem: The file or interpreter does not exist, or an argument is invalid.
        """
        path = self.place(file)
        if not path.is_file():
            raise UsageProblem(f"{fixture}: the app file {path} does not exist", remedies=[NAME_IT])
        given = arguments or {}
        return App(
            fixture=fixture,
            file=path,
            shown=self.shown(path),
            arguments=given if fixture == "torch_worker" else named_arguments(fixture, given),
            extra=words(f"{fixture}(args=...)", args),
            environment=variables(fixture, env),
            python=self.interpreter(python),
            distributions=self.distributions,
        )

    def interpreter(self, python: str | Path | None) -> str:
        """Interpreter by its path or its name on the PATH; None for the tests' own.

        Raises:
            UsageProblem: The interpreter does not exist.
        """
        return sys.executable if python is None else find_python(fspath(python), self.place("."), "python")

    def place(self, path: str | Path) -> Path:
        """Path relative to the caller's file, which means the same in a test, fixture and conftest."""
        return (calling_file().parent / path).resolve()


_URL: Final = "http://HOST:PORT or https://HOST:PORT"


def _server_at(url: str) -> Endpoint:
    """Address of a remote server; errors do not show parts of the URL that may be secret."""
    if not isinstance(url, str):
        raise UsageProblem(f"remote_server(...) takes a URL as text, not a {type(url).__name__}", remedies=[_URL])
    if "@" in url:
        raise UsageProblem(
            "remote_server(...): the URL must not contain a user",
            remedies=[_URL, 'for a user: server.post(..., headers={"Authorization": ...})'],
        )
    shown = url.partition("?")[0].partition("#")[0]
    try:
        endpoint, path = endpoint_of(url)
    except UsageProblem as problem:
        raise UsageProblem(f"remote_server({shown!r}) is not a URL", found=problem.found, remedies=[_URL]) from None
    if endpoint.protocol != "http" or path != "/":
        raise UsageProblem(
            f"remote_server({shown!r}): give the server alone; requests name their paths", remedies=[_URL]
        )
    return endpoint
