"""Why a storage did not do something, in words: backends raise whatever they like."""

from __future__ import annotations

import os
import re
from http import HTTPStatus
from typing import TYPE_CHECKING, Final

from pytest_gpuserve.process.secrets import without_secrets
from pytest_gpuserve.store.elsewhere.address import S3_SCHEMES
from pytest_gpuserve.store.elsewhere.remote import StorageProblem

if TYPE_CHECKING:
    from pytest_gpuserve.store.elsewhere.address import Address

_LONGEST_CAUSE: Final = 500
_USER: Final = re.compile(r"://\S+@")
"""As far as the last ``@`` of the word: a token may have slashes and a password anything in it."""

_NO_CREDENTIALS: Final = frozenset({"NoCredentialsError", "PartialCredentialsError", "TokenRetrievalError"})

_CREDENTIALS: Final = (
    "credentials come from where the storage's own tools take them (for S3: the environment, AWS_PROFILE, ~/.aws);"
    " reading needs s3:ListBucket and s3:GetObject, recording s3:PutObject too"
)
_REACH: Final = "is it reachable from this machine? AWS_ENDPOINT_URL names an S3 that is not Amazon's"


def storage_problem(address: Address, what: str, problem: BaseException) -> StorageProblem:
    """The error of a storage.

    Args:
        address: Of a file or of the folder.
        what: Was not done, as in ``cannot be listed``.
        problem: What the backend raised.
    """
    if isinstance(problem, PermissionError) or type(problem).__name__ in _NO_CREDENTIALS:
        remedies = [_CREDENTIALS]
    elif isinstance(problem, FileNotFoundError):
        remedies = ["is the name right? a bucket is never made here"]
    else:
        remedies = [_REACH] if address.scheme in S3_SCHEMES else []
    return StorageProblem(f"{address} {what}", found=cause_of(problem), remedies=remedies)


def cause_of(problem: BaseException) -> str:
    """The kind and the text of an error in one line, without secrets."""
    text = " ".join(str(problem).split())
    line = f"{type(problem).__name__}: {text}" if text else type(problem).__name__
    return without_secrets(_USER.sub("://...@", line), os.environ)[:_LONGEST_CAUSE]


def is_absent(problem: FileNotFoundError) -> bool:
    """Whether a backend says that there is no such file; some say so of every error, which they give as the cause."""
    cause: BaseException | None = problem
    while isinstance(cause, FileNotFoundError):
        cause = cause.__cause__
    # As the libraries for HTTP and for Azure name it.
    statuses = {getattr(cause, name, None) for name in ("status", "status_code")}
    return cause is None or HTTPStatus.NOT_FOUND in statuses


def error_code(problem: BaseException) -> str:
    """What an S3 calls an error, such as ``PreconditionFailed``; empty where it said nothing.

    s3fs raises an error of Python's own, with botocore's as its cause.
    """
    for each in (problem, problem.__cause__):
        response = getattr(each, "response", None)
        if isinstance(response, dict):
            return str(response.get("Error", {}).get("Code", ""))
    return ""
