"""The models of the suite's repository, by their published names; their ``config.pbtxt`` are beside their code."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent / "apps" / "models"

PREPROCESSING = "preprocessing"
GENERATION = "codegen-350M-mono-gptj"
POSTPROCESSING = "postprocessing"
ENSEMBLE = "ensemble"
STEPS = (PREPROCESSING, GENERATION, POSTPROCESSING)
