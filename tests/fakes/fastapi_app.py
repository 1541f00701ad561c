"""A FastAPI app whose request has a field of each kind; it has no page of its schema."""

from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import FastAPI, Header
from pydantic import BaseModel, Field

app = FastAPI(openapi_url=None)


class Colour(Enum):
    """Red is the first one."""

    RED = "red"
    BLUE = "blue"


class Size(BaseModel):
    """Numbers within limits."""

    width: float = Field(gt=0, le=0.5)
    height: int = Field(ge=3)


class Node(BaseModel):
    """Contains itself, in a list and in a choice."""

    children: list["Node"]
    next: "Node | None"


class Cat(BaseModel):
    """Differs from a dog by a field that has a default."""

    kind: Literal["cat"] = "cat"
    lives: int


class Dog(BaseModel):
    """The second choice."""

    kind: Literal["dog"] = "dog"


class Question(BaseModel):
    """Has a field of each kind."""

    text: str = Field(min_length=3)
    known: str = Field(examples=["a fox"], pattern="^a fox$")
    at: datetime
    name: UUID
    colour: Colour
    size: Size
    pair: tuple[float, int]
    tags: list[str] = Field(min_length=2)
    maybe: int | None
    either: Size | str
    pet: Cat | Dog = Field(discriminator="kind")
    node: Node
    table: dict[str, float]
    flag: bool
    anything: Any
    optional: int = 3


@app.get("/health")
def health() -> str:
    """Is not the request, because there is a better one."""
    return "ok"


@app.post("/models/{name}/predict")
def of_a_model(name: str, question: Question) -> str:
    """Is not the request, because its path has a parameter."""
    return name


@app.post("/private")
def private(question: Question, key: Annotated[str, Header()]) -> str:
    """Is not the request, because it needs a header."""
    return key


@app.post("/predict")
def predict(question: Question) -> dict[str, Any]:
    """Is the request."""
    return {"text": question.text.upper(), "next": question.node.next}
