"""JSON responses and the schemas that describe them in OpenAPI."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response


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

    run: str | None = Field(description="name of the run that produced the model")
    purpose: str = Field(
        description="what the model distinguishes, e.g. `Run flowers distinguishes 3 classes`; of "
        "a model at chance level, what it was trained to distinguish"
    )
    top1: float | None = Field(description="accuracy of the run on its validation images")
    top1_interval: list[float] | None = Field(None, description="95% interval of `top1`")
    cross_validated: float | None = Field(
        None,
        description="accuracy by cross-validation, where it is more precise than `top1`",
    )
    cross_validated_interval: list[float] | None = Field(
        None, description="95% interval of `cross_validated`"
    )
    cross_validated_images: int | None = Field(
        None, description="number of cross-validated images; 0 if `cross_validated` is null"
    )
    cross_validated_text: str = Field(
        "", description="`cross_validated` in words, as in the report; empty if it is null"
    )
    tested: float | None = Field(
        None,
        description="accuracy on the test images, which influenced no decision (multi-label: mean "
        "average precision); null without test images",
    )
    tested_interval: list[float] | None = Field(None, description="95% interval of `tested`")
    tested_images: int | None = Field(
        None, description="number of test images; 0 if `tested` is null"
    )
    tested_text: str = Field("", description="`tested` in words; empty if it is null")
    majority: float | None = Field(
        None, description="accuracy of always predicting the largest class or label set"
    )
    mean_ap: float | None = Field(
        None, description="mean average precision of a multi-label model on its validation images"
    )
    images: int | None = Field(None, description="number of validation images; 0 if unknown")
    at_chance: str = Field(
        "", description="phrase such as `always predicts 7` for a model at chance level"
    )
    rounded: bool = Field(
        False, description="whether weights were rounded to 8 bits after the accuracy was measured"
    )
    status: str = Field(
        "", description="status of a run that has not finished, such as `interrupted`, or empty"
    )
    weights: str = Field("", description="name of the pretrained weights; empty if unknown")
    trained: str | None = Field(
        None, description="date of the end of the run, as YYYY-MM-DD; null if unknown"
    )
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
