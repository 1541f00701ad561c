"""The model repository by typed arguments: names, tensors and steps are those of the published system.

``python -m suites.codegen.repository`` writes the ``config.pbtxt`` files anew. They are kept in the repository, where
a user copies them from, and where another revision of the project has its own.
"""

from __future__ import annotations

from pathlib import Path

from pytest_gpuserve.servers.triton_config import DynamicBatching, InstanceGroup, ModelConfig, Step, Tensor, write_model

FOLDER = Path(__file__).parent / "apps" / "models"

PREPROCESSING = "preprocessing"
GENERATION = "codegen-350M-mono-gptj"
POSTPROCESSING = "postprocessing"
ENSEMBLE = "ensemble"
STEPS = (PREPROCESSING, GENERATION, POSTPROCESSING)

MAX_BATCH_SIZE = 1024

ONE_ON_CPU = (InstanceGroup("CPU", 1),)
"""As published, for the generating model too: that says where Triton puts tensors, not where the model computes."""

OPTIONS = (
    Tensor("runtime_top_k", "UINT32", (1,), optional=True),
    Tensor("runtime_top_p", "FP32", (1,), optional=True),
    Tensor("beam_search_diversity_rate", "FP32", (1,), optional=True),
    Tensor("temperature", "FP32", (1,), optional=True),
    Tensor("len_penalty", "FP32", (1,), optional=True),
    Tensor("repetition_penalty", "FP32", (1,), optional=True),
    Tensor("random_seed", "UINT64", (1,), optional=True),
    Tensor("is_return_log_probs", "BOOL", (1,), optional=True),
    Tensor("beam_width", "UINT32", (1,), optional=True),
    Tensor("start_id", "UINT32", (1,), optional=True),
    Tensor("end_id", "UINT32", (1,), optional=True),
)
"""How an answer is chosen: inputs of the ensemble, and by the same names of the generating model."""

ANSWERED = (
    Tensor("sequence_length", "UINT32", (-1,)),
    Tensor("cum_log_probs", "FP32", (-1,)),
    Tensor("output_log_probs", "FP32", (-1, -1)),
)
"""What the ensemble returns of the generating model as it is."""

CONFIGS = (
    ModelConfig(
        PREPROCESSING,
        inputs=(
            Tensor("QUERY", "BYTES", (-1,)),
            Tensor("REQUEST_OUTPUT_LEN", "UINT32", (-1,)),
            Tensor("BAD_WORDS_DICT", "BYTES", (-1,)),
            Tensor("STOP_WORDS_DICT", "BYTES", (-1,)),
        ),
        outputs=(
            Tensor("INPUT_ID", "UINT32", (-1,)),
            Tensor("REQUEST_INPUT_LEN", "UINT32", (1,)),
            Tensor("REQUEST_OUTPUT_LEN", "UINT32", (-1,)),
            Tensor("BAD_WORDS_IDS", "INT32", (2, -1)),
            Tensor("STOP_WORDS_IDS", "INT32", (2, -1)),
        ),
        max_batch_size=MAX_BATCH_SIZE,
        instances=ONE_ON_CPU,
    ),
    ModelConfig(
        GENERATION,
        inputs=(
            Tensor("input_ids", "UINT32", (-1,)),
            Tensor("input_lengths", "UINT32", (1,)),
            Tensor("request_output_len", "UINT32", (-1,)),
            *OPTIONS,
            Tensor("bad_words_list", "INT32", (2, -1), optional=True),
            Tensor("stop_words_list", "INT32", (2, -1), optional=True),
        ),
        outputs=(Tensor("output_ids", "UINT32", (-1, -1)), *ANSWERED),
        max_batch_size=MAX_BATCH_SIZE,
        # The counters that were published show batches, so there was such a stanza; its delay is not known. With none,
        # a batch is what came while the one before it was executed. The size is what Triton uses where none is named.
        dynamic_batching=DynamicBatching(preferred_batch_size=(MAX_BATCH_SIZE,), max_queue_delay_us=0),
        instances=ONE_ON_CPU,
    ),
    ModelConfig(
        POSTPROCESSING,
        inputs=(Tensor("TOKENS_BATCH", "UINT32", (-1, -1)),),
        outputs=(Tensor("OUTPUT", "BYTES", (-1, -1)),),
        max_batch_size=MAX_BATCH_SIZE,
        instances=ONE_ON_CPU,
    ),
    ModelConfig(
        ENSEMBLE,
        inputs=(
            Tensor("INPUT_0", "BYTES", (-1,)),
            Tensor("INPUT_1", "UINT32", (-1,)),
            Tensor("INPUT_2", "BYTES", (-1,)),
            Tensor("INPUT_3", "BYTES", (-1,)),
            *OPTIONS,
        ),
        outputs=(Tensor("OUTPUT_0", "BYTES", (-1, -1)), *ANSWERED),
        max_batch_size=MAX_BATCH_SIZE,
        steps=(
            Step(
                PREPROCESSING,
                inputs={
                    "QUERY": "INPUT_0",
                    "REQUEST_OUTPUT_LEN": "INPUT_1",
                    "BAD_WORDS_DICT": "INPUT_2",
                    "STOP_WORDS_DICT": "INPUT_3",
                },
                outputs={
                    "INPUT_ID": "_INPUT_ID",
                    "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
                    "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
                    "BAD_WORDS_IDS": "_BAD_WORDS_IDS",
                    "STOP_WORDS_IDS": "_STOP_WORDS_IDS",
                },
            ),
            Step(
                GENERATION,
                inputs={
                    "input_ids": "_INPUT_ID",
                    "input_lengths": "_REQUEST_INPUT_LEN",
                    "request_output_len": "_REQUEST_OUTPUT_LEN",
                    **{tensor.name: tensor.name for tensor in OPTIONS},
                    "bad_words_list": "_BAD_WORDS_IDS",
                    "stop_words_list": "_STOP_WORDS_IDS",
                },
                outputs={"output_ids": "_TOKENS_BATCH", **{tensor.name: tensor.name for tensor in ANSWERED}},
            ),
            Step(POSTPROCESSING, inputs={"TOKENS_BATCH": "_TOKENS_BATCH"}, outputs={"OUTPUT": "OUTPUT_0"}),
        ),
    ),
)
"""All models, the ensemble last."""


def write_repository(folder: Path = FOLDER) -> None:
    """Write the configuration of every model; their code stays as it is."""
    for config in CONFIGS:
        write_model(folder, config)


if __name__ == "__main__":
    write_repository()
