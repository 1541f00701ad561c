"""The Temporal Fusion Transformer with seeded weights, for the server, the exporter and the reference of the tests.

The published network called ``torch.cuda.synchronize()`` in the middle of its forward pass. That call needs a GPU, and
makes every call wait for it. It is left out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from .contract import DATASETS, ENCODER_LENGTH, EXAMPLE_LENGTH, QUANTILES
from .layers import (
    NORM_EPSILON,
    Gate,
    GatedResidual,
    InterpretableAttention,
    StaticEncoder,
    VariableEmbedding,
    VariableSelection,
)

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_SEED = 0
"""Seed of the random weights."""

HIDDEN = {"full": 128, "small": 16}
"""Width of the hidden layers by the name of a size. ``full`` is the published one; ``small`` is for a CPU, with the
same layers, heads, hours and tensors."""

HEADS = 4


@dataclass(frozen=True)
class Variables:
    """Variables of one kind.

    Args:
        cardinalities: Cardinalities of the categorical ones.
        continuous: Number of continuous ones.
    """

    cardinalities: tuple[int, ...] = ()
    continuous: int = 0

    @property
    def count(self) -> int:
        """Number of both kinds."""
        return len(self.cardinalities) + self.continuous


@dataclass(frozen=True)
class Shape:
    """Dimensions of a network.

    Args:
        static: Variables of a series, the same in all hours; at least one.
        known: Variables of every hour that are known in advance; at least one.
        observed: Variables that are known only in the past.
        targets: Forecast variables.
        hidden: Width of the hidden layers, a multiple of ``heads``.
        heads: Heads of the attention.
        dropout: Dropout in training.
    """

    static: Variables
    known: Variables
    observed: Variables = Variables()
    targets: int = 1
    hidden: int = HIDDEN["full"]
    heads: int = HEADS
    dropout: float = 0.1


def shape_of(dataset: str, size: str = "full") -> Shape:
    """Look up the dimensions for a data set, a key of `DATASETS`, and a size, a key of `HIDDEN`.

    Raises:
        ValueError: The data set or size does not exist.
    """
    for what, name, known in (("data set", dataset, DATASETS), ("size", size, HIDDEN)):
        if name not in known:
            raise ValueError(f"no {what} {name!r}; there are {', '.join(known)}")
    found = DATASETS[dataset]
    return Shape(
        static=Variables(cardinalities=(found.series,)),
        known=Variables(continuous=len(found.known)),
        hidden=HIDDEN[size],
        dropout=found.dropout,
    )


class Embedding(nn.Module):
    """Vectors of all variables.

    Args:
        shape: Of the network.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.static, self.known, self.observed, self.target = (
            VariableEmbedding(found.cardinalities, found.continuous, shape.hidden)
            for found in (shape.static, shape.known, shape.observed, Variables(continuous=shape.targets))
        )


class Fusion(nn.Module):
    """All after the embedding and the static encoder: selection, LSTMs, attention and quantiles.

    Args:
        shape: Of the network.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        hidden, dropout = shape.hidden, shape.dropout
        past = shape.observed.count + shape.known.count + shape.targets
        self.select_past = VariableSelection(past, hidden, dropout)
        self.encode_past = nn.LSTM(hidden, hidden, batch_first=True)
        self.select_future = VariableSelection(shape.known.count, hidden, dropout)
        self.encode_future = nn.LSTM(hidden, hidden, batch_first=True)
        self.recurrent_gate = Gate(hidden, hidden)
        self.recurrent_norm = nn.LayerNorm(hidden, eps=NORM_EPSILON)
        self.enrich = GatedResidual(hidden, hidden, context=hidden, dropout=dropout)
        self.attention = InterpretableAttention(hidden, shape.heads, EXAMPLE_LENGTH, dropout)
        self.attention_gate = Gate(hidden, hidden)
        self.attention_norm = nn.LayerNorm(hidden, eps=NORM_EPSILON)
        self.position_wise = GatedResidual(hidden, hidden, dropout=dropout)
        self.output_gate = Gate(hidden, hidden)
        self.output_norm = nn.LayerNorm(hidden, eps=NORM_EPSILON)
        self.quantiles = nn.Linear(hidden, len(QUANTILES))

    def forward(self, past: Tensor, future: Tensor, contexts: tuple[Tensor, ...]) -> Tensor:
        """From variables of the past and the future, (batch, hours, variables, hidden), to (batch, horizon, quantiles).

        Args:
            past: Of `ENCODER_LENGTH` hours.
            future: Of the horizon.
            contexts: As `StaticEncoder` returns them.
        """
        of_selection, of_enrichment, state, cell = contexts
        past = self.select_past(past, of_selection)
        future = self.select_future(future, of_selection)
        past_states, last = self.encode_past(past, (state.unsqueeze(0), cell.unsqueeze(0)))
        future_states, _ = self.encode_future(future, last)
        hours = torch.cat([past, future], dim=1)
        states = torch.cat([past_states, future_states], dim=1)
        hours = self.recurrent_norm(hours + self.recurrent_gate(states))
        enriched = self.enrich(hours, of_enrichment)
        seen = self.attention(enriched)
        # The hours of the past were needed to be looked at; they are not forecast.
        seen, hours, enriched = (hour[:, ENCODER_LENGTH:] for hour in (seen, hours, enriched))
        attended = self.attention_norm(enriched + self.attention_gate(seen))
        decoded = self.output_norm(hours + self.output_gate(self.position_wise(attended)))
        result: Tensor = self.quantiles(decoded)
        return result


class TemporalFusionTransformer(nn.Module):
    """The network, with the eight inputs of the published Triton models.

    Args:
        shape: Its dimensions.
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embedding = Embedding(shape)
        self.static_encoder = StaticEncoder(shape.static.count, shape.hidden, shape.dropout)
        self.fusion = Fusion(shape)

    def forward(  # noqa: PLR0917 -- the contract's order
        self,
        s_cat: Tensor,
        s_cont: Tensor,
        k_cat: Tensor,
        k_cont: Tensor,
        o_cat: Tensor,
        o_cont: Tensor,
        target: Tensor,
        id: Tensor,  # noqa: A002 -- the name in the contract
    ) -> Tensor:
        """Forecast; from (batch, 192, variables) each to (batch, 24, 3).

        An input whose second dimension is 1 is a placeholder: the data set has no such variables. Static variables come
        from the first hour, observed ones and targets only from the past; ``id`` is not used.

        Args:
            s_cat: Static categories, integers.
            s_cont: Static numbers.
            k_cat: Categories of every hour that are known, integers.
            k_cont: Numbers of every hour that are known.
            o_cat: Observed categories, integers.
            o_cont: Observed numbers.
            target: Forecast variable.
            id: Number of the series.

        Raises:
            ValueError: An input is a placeholder where the network has variables, or the other way round.
        """
        del id
        static = self.embedding.static(*(_first(_given(found)) for found in (s_cat, s_cont)))
        known = self.embedding.known(_given(k_cat), _given(k_cont))
        observed = self.embedding.observed(*(_past(_given(found)) for found in (o_cat, o_cont)))
        targets = self.embedding.target(None, _past(_given(target)))
        past = [part for part in (observed, _past(known), targets) if part is not None]
        result: Tensor = self.fusion(torch.cat(past, dim=-2), known[:, ENCODER_LENGTH:], self.static_encoder(static))
        return result


def build_model(
    dataset: str, *, size: str = "full", seed: int = DEFAULT_SEED, weights: Path | None = None
) -> TemporalFusionTransformer:
    """Build the network in eval mode, on the CPU and in fp32.

    Args:
        dataset: A key of `DATASETS`.
        size: A key of `HIDDEN`.
        seed: Seed of the random weights. Equal seeds give equal weights in every process; torch's own random state does
            not change.
        weights: A state dict (``torch.save(model.state_dict(), FILE)``) instead.

    Raises:
        ValueError: The data set or size does not exist.
        OSError: The weights cannot be read.
        RuntimeError: The weights are those of another network.
    """
    shape = shape_of(dataset, size)
    # Weights are always drawn on the CPU: a CUDA generator gives other numbers for the same seed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = TemporalFusionTransformer(shape)
    if weights is not None:
        model.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    model.eval()
    return model


def _given(found: Tensor) -> Tensor | None:
    return None if found.shape[1] == 1 else found


def _first(found: Tensor | None) -> Tensor | None:
    return None if found is None else found[:, 0]


def _past(found: Tensor | None) -> Tensor | None:
    return None if found is None else found[:, :ENCODER_LENGTH]
