"""Requests: the published sentence, bare and as the 222 bytes of a KServe request, and other sentences."""

from __future__ import annotations

import json
import struct

FOX = b"The quick brown fox jumps over the lazy dog"
"""43 bytes, 11 tokens."""

SENTENCES = (
    FOX,
    b"a wonderful film",
    b"what a terrible waste of time",
    b"i loved every minute of it",
    b"the plot is dull and the actors are boring",
    b"Brilliant performance by the director!",
    b"I will never watch it again",
    b"Xylophones & zebras: 3 of 12",
    b"hello",
)
"""Sentences of several lengths, with both labels in every size of the model. The logits of each differ by more than the
rounding of any device."""

INFER_PATH = "/v2/models/distilbert/infer"

HEADER_LENGTH = "Inference-Header-Content-Length"
"""HTTP header with the end of the JSON in the body, where the tensors begin."""


def kserve_body(text: bytes) -> tuple[bytes, int]:
    """Make the body of a KServe v2 request with binary tensors, letter for letter as the published client did.

    Source: the "Open Inference Protocol" of KServe, and "Binary Tensor Data Extension" of Triton's documentation: a
    BYTES element is its length as 4 bytes, little-endian, and then itself.

    Args:
        text: The only element of ``messages``.

    Returns:
        The body, and how many bytes of it are JSON.
    """
    element = struct.pack("<I", len(text)) + text
    inputs = {
        "name": "messages",
        "shape": [1, 1],
        "datatype": "BYTES",
        "parameters": {"binary_data_size": len(element)},
    }
    outputs = {"name": "labels", "parameters": {"binary_data": True}}
    header = json.dumps({"id": "0", "inputs": [inputs], "outputs": [outputs]}, separators=(",", ":")).encode()
    return header + element, len(header)
