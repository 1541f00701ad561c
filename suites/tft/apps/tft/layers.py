"""The parts of the Temporal Fusion Transformer: gates, variable selection and attention.

Lim, Arik, Loeff and Pfister, "Temporal Fusion Transformers for interpretable multi-horizon time series forecasting",
International Journal of Forecasting 37 (2021); equations by their numbers there.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

NORM_EPSILON = 1e-3
"""Epsilon of every layer norm: TensorFlow's default, with which the published weights were trained."""


class Gate(nn.Module):
    """Gated linear unit, equation 5: one half of a linear map lets the other half pass.

    Args:
        width: Of the input.
        output: Of the output.
    """

    def __init__(self, width: int, output: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * output)

    def forward(self, x: Tensor) -> Tensor:
        """From (..., width) to (..., output)."""
        return functional.glu(self.linear(x), dim=-1)


class GatedResidual(nn.Module):
    """Gated residual network, equations 2 to 4.

    Args:
        width: Width of the input.
        hidden: Width of the layers between.
        output: Width of the output; None for that of the hidden layers, with the input added unchanged.
        context: Width of a second input, which is the same for all hours, or None.
        dropout: Dropout before the gate.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        output: int | None = None,
        context: int | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.of_context = None if context is None else nn.Linear(context, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)
        self.dropout = nn.Dropout(dropout)
        self.gate = Gate(hidden, output or hidden)
        self.skip = nn.Identity() if output is None else nn.Linear(width, output)
        # The norm of a single number would always be 0.
        self.norm = nn.Identity() if output == 1 else nn.LayerNorm(output or hidden, eps=NORM_EPSILON)

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """From (batch, [hours,] width), and a context (batch, context), to (batch, [hours,] output)."""
        inner = self.first(x)
        if context is not None and self.of_context is not None:
            inner = inner + self.of_context(context).unsqueeze(1)
        inner = self.dropout(self.second(functional.elu(inner)))
        result: Tensor = self.norm(self.skip(x) + self.gate(inner))
        return result


class VariableEmbedding(nn.Module):
    """Turns the variables of one kind into vectors: categories by a table, numbers by a line.

    Args:
        cardinalities: Cardinalities of the categorical variables.
        continuous: Number of continuous variables.
        hidden: Width of a vector.
    """

    def __init__(self, cardinalities: tuple[int, ...], continuous: int, hidden: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, hidden) for count in cardinalities)
        self.continuous = continuous
        if continuous:
            self.slope = nn.Parameter(torch.empty(continuous, hidden))
            self.offset = nn.Parameter(torch.zeros(continuous, hidden))
            nn.init.xavier_normal_(self.slope)

    def forward(self, categories: Tensor | None, numbers: Tensor | None) -> Tensor | None:
        """From (..., variables) each to (..., variables, hidden), categories first; None without variables.

        Raises:
            ValueError: An input for existing variables is missing, or one for absent variables is given.
        """
        for what, given, wanted in (
            ("categorical", categories, len(self.tables)),
            ("continuous", numbers, self.continuous),
        ):
            found = 0 if given is None else given.shape[-1]
            if found != wanted:
                raise ValueError(f"{found} {what} variables where the model has {wanted}")
        parts = []
        if categories is not None:
            parts.append(torch.stack([table(categories[..., i]) for i, table in enumerate(self.tables)], dim=-2))
        if numbers is not None:
            parts.append(numbers.unsqueeze(-1) * self.slope + self.offset)
        return torch.cat(parts, dim=-2) if parts else None


class VariableSelection(nn.Module):
    """Variable selection network, equations 6 to 8: weighs variables by what all of them are, and the context.

    Args:
        variables: How many.
        hidden: Width of each.
        dropout: In the networks of the variables.
    """

    def __init__(self, variables: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.weigh = GatedResidual(variables * hidden, hidden, output=variables, context=hidden)
        self.of_variable = nn.ModuleList(GatedResidual(hidden, hidden, dropout=dropout) for _ in range(variables))

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        """From (batch, [hours,] variables, hidden) to (batch, [hours,] hidden)."""
        weights = functional.softmax(self.weigh(x.flatten(-2), context), dim=-1)
        vectors = torch.stack([network(x[..., i, :]) for i, network in enumerate(self.of_variable)], dim=-1)
        return torch.matmul(vectors, weights.unsqueeze(-1)).squeeze(-1)


class StaticEncoder(nn.Module):
    """Static covariate encoder, section 4.3: what a series is, as four contexts.

    Args:
        variables: Static variables.
        hidden: Width of each, and of each context.
        dropout: In its networks.
    """

    CONTEXTS = 4

    def __init__(self, variables: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.selection = VariableSelection(variables, hidden, dropout)
        self.contexts = nn.ModuleList(GatedResidual(hidden, hidden, dropout=dropout) for _ in range(self.CONTEXTS))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        """From (batch, variables, hidden) to (batch, hidden) each: of selection, enrichment, LSTM state and cell."""
        selected = self.selection(x)
        return tuple(context(selected) for context in self.contexts)


class InterpretableAttention(nn.Module):
    """Interpretable multi-head attention, equations 13 to 16: heads share their values, and are averaged.

    No hour sees a later one.

    Args:
        hidden: Width of an hour.
        heads: That it is divided into.
        hours: Of an example.
        dropout: After the last layer.

    Raises:
        ValueError: The width cannot be divided so.
    """

    def __init__(self, hidden: int, heads: int, hours: int, dropout: float) -> None:
        super().__init__()
        if hidden % heads:
            raise ValueError(f"a width of {hidden} is not {heads} heads of one width")
        self.heads = heads
        self.width = hidden // heads
        # Queries and keys of each head, and the one value of all.
        self.project = nn.Linear(hidden, (2 * heads + 1) * self.width, bias=False)
        self.out = nn.Linear(self.width, hidden, bias=False)
        self.dropout = nn.Dropout(dropout)
        later = torch.full((hours, hours), float("-inf")).triu(1)
        self.register_buffer("later", later, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """From (batch, hours, hidden) to the same."""
        own = self.heads * self.width
        queries, keys, values = self.project(x).split((own, own, self.width), dim=-1)
        queries = queries.unflatten(-1, (self.heads, self.width)).transpose(1, 2)
        keys = keys.unflatten(-1, (self.heads, self.width)).permute(0, 2, 3, 1)
        scores = torch.matmul(queries, keys) * self.width**-0.5 + self.later
        seen = torch.matmul(functional.softmax(scores, dim=-1), values.unsqueeze(1))
        result: Tensor = self.dropout(self.out(seen.mean(dim=1)))
        return result
