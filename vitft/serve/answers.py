"""What the server answers, as schemas and as JSON."""

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response


class Json(Response):
    """JSON in ASCII: a class name that is no valid Unicode is escaped, too."""

    media_type = "application/json"

    def __init__(
        self, status: int, fields: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(json.dumps(fields, allow_nan=False), status, headers)


class Share(BaseModel):
    """A class and how probable it is."""

    name: str = Field(serialization_alias="class")
    probability: float = Field(ge=0, le=1)


class Answer(BaseModel):
    """One image: classes, best first, or an error."""

    name: str = Field(description="file name as sent")
    classes: list[Share] | None = None
    error: str | None = Field(None, description="why this image has no answer")


class Answers(BaseModel):
    """One answer per image, in the order of the request."""

    results: list[Answer]


class Problem(BaseModel):
    """Why a request is not answered."""

    error: str


class Labels(BaseModel):
    """What the model knows and takes."""

    classes: list[str]
    image_size: list[int] = Field(description="height and width of what the model sees, pixels")
    explains: bool = Field(description="whether POST /explain is there")
    max_bytes: int = Field(description="of one request")
    max_images: int = Field(description="in one request")


class Health(BaseModel):
    """That the server is alive, and how busy."""

    status: str
    waiting: int = Field(description="images waiting for their answer")
    queue: int = Field(description="how many may wait")
