"""JSON responses and the schemas that describe them in OpenAPI."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from vitft.metrics.summary import Results


class JsonResponse(Response):
    """JSON response in ASCII, with non-ASCII characters and invalid Unicode escaped."""

    media_type = "application/json"

    def __init__(
        self, status: int, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(json.dumps(fields, allow_nan=False), status, headers)


class ClassProbabilitySchema(BaseModel):
    """A class and its probability."""

    name: str = Field(serialization_alias="class")
    probability: float = Field(ge=0, le=1)


class PredictionSchema(BaseModel):
    """The prediction for one image, in the format of `vitft predict --format json`."""

    path: str = Field(
        description="file name sent by the client; empty if the body is a single image"
    )
    run: str | None = Field(None, description="name of the run that produced the model")
    labels: list[str] | None = Field(
        None,
        description="labels assigned to the image; absent if the model assigns one class to each "
        "image",
    )
    classes: list[ClassProbabilitySchema] | None = Field(
        None, description="classes or labels, most probable first"
    )
    notes: list[str] | None = Field(
        None,
        description="remarks such as `not sure`, `unlike the training images` or `blank: one "
        "uniform colour`",
    )
    error: str | None = Field(None, description="reason why the image has no prediction")


class PredictionsSchema(BaseModel):
    """One prediction per image, in the order of the request."""

    results: list[PredictionSchema]


class ErrorSchema(BaseModel):
    """The reason why a request failed."""

    error: str


class LabelsSchema(BaseModel):
    """Facts about the model, and the limits of the server."""

    purpose: str = Field(
        description="what the model distinguishes, e.g. `Run flowers distinguishes 3 classes`; of "
        "a model at chance level, what it was trained to distinguish"
    )
    summary: list[str] = Field(
        description="every estimate of the accuracy in words, first the one to quote"
    )
    caution: str = Field(
        "", description="why not to rely on the model, if it is at chance level; otherwise empty"
    )
    results: Results = Field(description="the numbers of the run; what is unknown is null or empty")
    threshold: float | None = Field(
        None, description="probability below which a prediction has the note `not sure`"
    )
    notes_unlike: bool = Field(
        description="whether images that are unlike the training images are flagged"
    )
    classes: list[str]
    thresholds: list[float] | None = Field(
        None,
        description="minimum probability at which each label is predicted; absent unless the model "
        "is multi-label",
    )
    image_size: list[int] = Field(description="height and width of the model's input in pixels")
    explains: bool = Field(description="whether POST /explain is available")
    max_bytes: int = Field(description="maximum size of a request body in bytes")
    max_images: int = Field(description="maximum number of images in a request")


class HealthSchema(BaseModel):
    """Status of the server and length of its queue."""

    status: str
    waiting: int = Field(description="number of images in the queue")
    queue: int = Field(description="maximum number of images in the queue")
